/* Attention of single query tokens over scattered keys and values, for one element type: TYPE, with NAME(f). */

INLINE float NAME(dot)(const float *x, const TYPE *y, long n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += x[i] * NAME(to_float)(y[i]);
    return sum;
}

/* The numbers of slot j of `count` as float32: in `wide`; those of 8 bits in `room`, where a few slots are restored at a time. */
INLINE const float *NAME(widened)(const Attention *job, const void *from, const int32_t *slots, long j, long count, long head, float *wide,
                                  float *room, long dim) {
    const long token = job->kv_heads * dim, done = j % SOME_KEYS, left = count - j;
    if (!room) {
        const TYPE *plain = (const TYPE *)from + slots[j] * token + head * dim;
        for (long i = 0; i < dim; i++) wide[i] = NAME(to_float)(plain[i]);
        return wide;
    }
    if (!done) restore_f32(&(Restore){(const uint8_t *)from + head * dim, slots + j, token, left < SOME_KEYS ? left : SOME_KEYS, dim, room});
    return room + done * dim;
}

/* One query row, one KV head, up to QUERIES of its query heads: online softmax over blocks of KEYS tokens. */
INLINE void NAME(attend_head)(const Attention *job, long row, long head, long from, long queries, long dim) {
    const TYPE *q = (const TYPE *)job->q + row * job->q_stride + (head * job->group + from) * dim;
    const int32_t *slots = job->slots[row];
    const long length = job->length[row], token = job->kv_heads * dim, first = head * dim, size = job->eight ? 1 : sizeof(TYPE);
    float query[QUERIES * MOST_DIM], mixed[QUERIES * MOST_DIM], wide[MOST_DIM], *room = NULL;
    float score[QUERIES][KEYS], most[QUERIES], total[QUERIES];

    if (job->eight) room = narrow_space(SOME_KEYS * dim * sizeof(float));
    for (long i = 0; i < queries * dim; i++) query[i] = NAME(to_float)(q[i]) * job->scale, mixed[i] = 0;
    for (long g = 0; g < queries; g++) most[g] = -INFINITY, total[g] = 0;
    for (long begin = 0; begin < length; begin += KEYS) {
        long count = length - begin < KEYS ? length - begin : KEYS;
        for (long j = 0; j < count; j++) {
            const long place = slots[begin + j] * token + first;
            const long ahead = slots[begin + j + AHEAD < length ? begin + j + AHEAD : length - 1] * token + first;
            prefetch((const char *)job->keys + ahead * size, dim * size);
            prefetch((const char *)job->values + place * size, dim * size);
            const float *key = NAME(widened)(job, job->keys, slots + begin, j, count, head, wide, room, dim);
            for (long g = 0; g < queries; g++) score[g][j] = dot_f32(query + g * dim, key, dim);
        }
        for (long g = 0; g < queries; g++) {
            float top = most[g], sum = 0;
            if (job->softcap) cap(score[g], count, job->softcap);
#pragma omp simd reduction(max : top)
            for (long j = 0; j < count; j++) top = score[g][j] > top ? score[g][j] : top;
            float keep = begin ? exponential(most[g] - top) : 0.0f;
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < count; j++) sum += score[g][j] = exponential(score[g][j] - top);
            total[g] = total[g] * keep + sum;
            most[g] = top;
            for (long i = 0; i < dim; i++) mixed[g * dim + i] *= keep;
        }
        for (long j = 0; j < count; j++) {
            const float *value = NAME(widened)(job, job->values, slots + begin, j, count, head, wide, room, dim);
            for (long g = 0; g < queries; g++) {
                float weight = score[g][j];
#pragma omp simd
                for (long i = 0; i < dim; i++) mixed[g * dim + i] += weight * value[i];
            }
        }
    }
    TYPE *out = (TYPE *)job->out + ((row * job->kv_heads + head) * job->group + from) * dim;
    for (long g = 0; g < queries; g++) {
        float share = share_of_keys(job, head * job->group + from + g, most[g], total[g]) * job->v_scale;
        for (long i = 0; i < dim; i++) out[g * dim + i] = NAME(from_float)(mixed[g * dim + i] * share);
    }
}

CLONES static void NAME(attend_plainly)(const void *work, long index) {
    const Attention *job = work;
    long row = index / job->kv_heads, head = index % job->kv_heads;
    for (long from = 0; from < job->group; from += QUERIES) {
        long queries = job->group - from < QUERIES ? job->group - from : QUERIES;
        if (job->dim == 64 && queries == 3)
            NAME(attend_head)(job, row, head, from, 3, 64);
        else if (job->dim == 64)
            NAME(attend_head)(job, row, head, from, queries, 64);
        else if (job->dim == 128)
            NAME(attend_head)(job, row, head, from, queries, 128);
        else
            NAME(attend_head)(job, row, head, from, queries, job->dim);
    }
}

static void NAME(attend)(const Attention *job) {
    if (NAME(has_wide)(job->dim)) share_tiles(NAME(attend_widely), job);
    else share(NAME(attend_plainly), job, job->rows * job->kv_heads);
}
