/* Attention as in cpu_attend.h with AVX-512, for heads of whole chunks: TYPE, NAME(f), and WIDE, the instructions. */

#if defined(__x86_64__)
static int NAME(has_wide)(long dim) { return dim % CHUNK == 0 && (sizeof(TYPE) == 4 ? has_avx512() : has_native_bfloat16()); }

/* Scores of 16 keys: each in a register of its own, then added up together. */
WIDE INLINE void NAME(score_keys)(const TYPE *q, const TYPE *const *keys, float scale, float *score, const long dim) {
    __m512 sums[LANES];
#pragma GCC unroll 16
    for (long j = 0; j < LANES; j++) {
        sums[j] = _mm512_setzero_ps();
        for (long i = 0; i < dim; i += CHUNK) sums[j] = NAME(dot_chunk)(sums[j], q + i, keys[j] + i);
    }
    _mm512_storeu_ps(score, _mm512_mul_ps(add_across(sums), _mm512_set1_ps(scale)));
}

/* mixed [queries] [dim] * keep + weights values, for one or two chunks from `from` on, in the order of split_chunk. */
WIDE INLINE void NAME(mix)(const TYPE *const *values, float (*weights)[KEYS], const float *keep, float (*mixed)[MOST_DIM],
                           long count, long from, const long queries, const long chunks) {
    __m512 sums[FEW][4];
#pragma GCC unroll 4
    for (long g = 0; g < queries; g++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * chunks; v++)
            sums[g][v] = _mm512_mul_ps(_mm512_loadu_ps(mixed[g] + from + v * LANES), _mm512_set1_ps(keep[g]));
    for (long j = 0; j < count; j++) {
        __m512 value[4];
#pragma GCC unroll 2
        for (long c = 0; c < chunks; c++) NAME(split_chunk)(values[j] + from + c * CHUNK, &value[2 * c], &value[2 * c + 1]);
#pragma GCC unroll 4
        for (long g = 0; g < queries; g++) {
            __m512 weight = _mm512_set1_ps(weights[g][j]);
#pragma GCC unroll 4
            for (long v = 0; v < 2 * chunks; v++) sums[g][v] = _mm512_fmadd_ps(weight, value[v], sums[g][v]);
        }
    }
#pragma GCC unroll 4
    for (long g = 0; g < queries; g++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * chunks; v++) _mm512_storeu_ps(mixed[g] + from + v * LANES, sums[g][v]);
}

/* Where the rows of a block begin. Those of 8 bits are restored to `room` [KEYS, dim] first. */
WIDE INLINE void NAME(find_rows)(const Attention *job, const void *from, const int32_t *slots, long first, long count, const TYPE **rows,
                                 TYPE *room, const long dim) {
    const long token = job->kv_heads * dim;
    if (job->eight) {
        Restore work = {(const uint8_t *)from + first, slots, token, count, dim, room};
        NAME(restore)(&work);
    }
    for (long j = 0; j < count; j++) rows[j] = job->eight ? room + j * dim : (const TYPE *)from + slots[j] * token + first;
}

WIDE INLINE void NAME(prefetch_rows)(const Attention *job, const void *from, const int32_t *slots, long first, long count, const long dim) {
    const long token = job->kv_heads * dim, size = job->eight ? 1 : sizeof(TYPE);
    for (long j = 0; j < count; j++) prefetch((const char *)from + (slots[j] * token + first) * size, dim * size);
}

WIDE INLINE void NAME(attend_few)(const Attention *job, long row, long head, long from, const long queries, const long dim) {
    const long first = head * job->group + from, length = job->length[row];
    const TYPE *q = (const TYPE *)job->q + row * job->q_stride + first * dim, *rows[KEYS];
    TYPE *room = job->eight ? narrow_space(KEYS * dim * sizeof(TYPE)) : NULL;
    float score[FEW][KEYS], mixed[FEW][MOST_DIM], most[FEW], total[FEW], keep[FEW];
    for (long g = 0; g < queries; g++) {
        most[g] = -INFINITY, total[g] = 0;
        for (long i = 0; i < dim; i++) mixed[g][i] = 0;
    }
    for (long begin = 0; begin < length; begin += KEYS) {
        const long count = length - begin < KEYS ? length - begin : KEYS;
        const int32_t *slots = job->slots[row] + begin;
        NAME(prefetch_rows)(job, job->keys, slots, head * dim, count, dim);
        NAME(find_rows)(job, job->keys, slots, head * dim, count, rows, room, dim);
        for (long j = count; j < ceiling(count, LANES) * LANES; j++) rows[j] = rows[0]; /* scored too, and left aside */
        for (long j = 0; j < count; j += LANES) {
            NAME(prefetch_rows)(job, job->values, slots + j, head * dim, count - j < LANES ? count - j : LANES, dim);
#pragma GCC unroll 4
            for (long g = 0; g < queries; g++) NAME(score_keys)(q + g * dim, rows + j, job->scale, &score[g][j], dim);
        }
        NAME(find_rows)(job, job->values, slots, head * dim, count, rows, room, dim);
        if (job->softcap)
            for (long g = 0; g < queries; g++) cap(score[g], count, job->softcap);
        for (long g = 0; g < queries; g++) keep[g] = soften(score[g], count, &most[g], &total[g]);
        long i = 0;
        for (; i + 2 * CHUNK <= dim; i += 2 * CHUNK) NAME(mix)(rows, score, keep, mixed, count, i, queries, 2);
        if (i < dim) NAME(mix)(rows, score, keep, mixed, count, i, queries, 1);
    }
    TYPE *out = (TYPE *)job->out + (row * job->kv_heads * job->group + first) * dim;
    for (long g = 0; g < queries; g++) {
        const __m512 share = _mm512_set1_ps(share_of_keys(job, first + g, most[g], total[g]) * job->v_scale);
        for (long i = 0; i < dim; i += CHUNK)
            NAME(join_chunk)(out + g * dim + i, _mm512_mul_ps(_mm512_loadu_ps(mixed[g] + i), share),
                             _mm512_mul_ps(_mm512_loadu_ps(mixed[g] + i + LANES), share));
    }
}

WIDE static void NAME(attend_widely)(const void *work, long index) {
    const Attention *job = work;
    const long row = index / job->kv_heads, head = index % job->kv_heads;
    for (long from = 0, some; from < job->group; from += some) {
        some = job->group - from < FEW ? job->group - from : FEW;
#define SIZED(queries) job->dim == 64 ? NAME(attend_few)(job, row, head, from, queries, 64) : NAME(attend_few)(job, row, head, from, queries, job->dim)
        switch (some) {
            case 1: SIZED(1); break;
            case 2: SIZED(2); break;
            case 3: SIZED(3); break;
            case 4: SIZED(4); break;
        }
#undef SIZED
    }
}
#else
static int NAME(has_wide)(long dim) { return (void)dim, 0; }
static void NAME(attend_widely)(const void *work, long index) { (void)work, (void)index; }
#endif
