/* Attention as in cpu_attend.h with AVX-512, for heads of whole chunks: TYPE, NAME(f), and WIDE, the instructions.

   Query tokens that stand next to each other in a sequence are attended together, a tile: a block of keys is brought near once
   for all of them. A block begins at a position that is a multiple of KEYS, and a query's sums run over what it sees in order:
   its bits are the same in any tile. */

#if defined(__x86_64__)
static int NAME(has_wide)(long dim) { return dim % CHUNK == 0 && (sizeof(TYPE) == 4 ? has_avx512() : has_native_bfloat16()); }

/* Scores of 16 keys: each in a register of its own, then added up together. */
WIDE INLINE void NAME(score_keys)(const TYPE *q, const TYPE *const *keys, float scale, float *score, const long dim) {
    __m512 fours[4];
#pragma GCC unroll 4
    for (long f = 0; f < 4; f++) {
        __m512 sums[4];
#pragma GCC unroll 4
        for (long j = 0; j < 4; j++) {
            sums[j] = _mm512_setzero_ps();
            for (long i = 0; i < dim; i += CHUNK) sums[j] = NAME(dot_chunk)(sums[j], q + i, keys[4 * f + j] + i);
        }
        fours[f] = add_quarters(sums);
    }
    _mm512_storeu_ps(score, _mm512_mul_ps(add_across(fours), _mm512_set1_ps(scale)));
}

/* mixed [queries] [dim] * keep + weights values, for one or two chunks from `from` on, in the order of split_chunk. */
WIDE INLINE void NAME(mix_chunks)(const TYPE *const *values, float (*weights)[KEYS], const float *keep, float *mixed, long start, long end,
                                  long from, const long queries, const long chunks, const long dim) {
    __m512 sums[FEW][4];
#pragma GCC unroll 4
    for (long g = 0; g < queries; g++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * chunks; v++)
            sums[g][v] = _mm512_mul_ps(_mm512_loadu_ps(mixed + g * dim + from + v * LANES), _mm512_set1_ps(keep[g]));
    for (long j = start; j < end; j++) {
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
        for (long v = 0; v < 2 * chunks; v++) _mm512_storeu_ps(mixed + g * dim + from + v * LANES, sums[g][v]);
}

/* The same for all chunks, and the keys `start` to `end`; nothing is to be kept twice. */
WIDE INLINE void NAME(mix)(const TYPE *const *values, float (*weights)[KEYS], float *keep, float *mixed, long start, long end,
                           const long queries, const long dim) {
    long i = 0;
    if (start >= end) return;
    for (; i + 2 * CHUNK <= dim; i += 2 * CHUNK) NAME(mix_chunks)(values, weights, keep, mixed, start, end, i, queries, 2, dim);
    if (i < dim) NAME(mix_chunks)(values, weights, keep, mixed, start, end, i, queries, 1, dim);
    for (long g = 0; g < queries; g++) keep[g] = 1;
}

/* Each query mixes what it sees of a block, from start[g] to end[g]: together what all of them see, if that is anything. */
WIDE INLINE void NAME(mix_seen)(const TYPE *const *values, float (*weights)[KEYS], float *keep, float *mixed, const long *start,
                                const long *end, const long queries, const long dim) {
    long from = start[0], to = end[0];
    for (long g = 1; g < queries; g++) from = start[g] > from ? start[g] : from, to = end[g] < to ? end[g] : to;
    if (from >= to) from = to = KEYS;
    for (long g = 0; g < queries; g++) NAME(mix)(values, weights + g, keep + g, mixed + g * dim, start[g], end[g] < from ? end[g] : from, 1, dim);
    NAME(mix)(values, weights, keep, mixed, from, to, queries, dim);
    for (long g = 0; g < queries; g++) NAME(mix)(values, weights + g, keep + g, mixed + g * dim, to, end[g], 1, dim);
}

/* Where the rows of a block begin, those of `start` to `end`. With a room [KEYS, dim] they are brought there first: those of 8 bits to
   be restored, others because rows of a pool lie a power of two apart, where the first cache holds few of them at a time. */
WIDE INLINE void NAME(find_rows)(const Attention *job, const void *from, const int32_t *slots, long first, long start, long end, const TYPE **rows,
                                 TYPE *room, const long dim) {
    const long token = job->kv_heads * dim;
    if (job->eight) {
        Restore work = {(const uint8_t *)from + first, slots + start, token, end - start, dim, room + start * dim};
        NAME(restore)(&work);
    } else if (room)
        for (long j = start; j < end; j++) memcpy(room + j * dim, (const TYPE *)from + slots[j] * token + first, dim * sizeof(TYPE));
    for (long j = start; j < end; j++) rows[j] = room ? room + j * dim : (const TYPE *)from + slots[j] * token + first;
    for (long j = start / LANES * LANES; j < start; j++) rows[j] = rows[start]; /* scored too, and left aside */
    for (long j = end; j < ceiling(end, LANES) * LANES; j++) rows[j] = rows[start];
}

WIDE INLINE void NAME(prefetch_rows)(const Attention *job, const void *from, const int32_t *slots, long first, long start, long end, const long dim) {
    const long token = job->kv_heads * dim, size = job->eight ? 1 : sizeof(TYPE);
    for (long j = start; j < end; j++) prefetch((const char *)from + (slots[j] * token + first) * size, dim * size);
}

/* Keys and values of the positions from `begin` on, up to KEYS and to `to`: while the block before them is computed for many queries. */
WIDE INLINE void NAME(prefetch_block)(const Attention *job, const int32_t *slots, long first, long begin, long to, const long dim) {
    const long end = to - begin < KEYS ? to - begin : KEYS;
    NAME(prefetch_rows)(job, job->keys, slots + begin, first, 0, end, dim);
    NAME(prefetch_rows)(job, job->values, slots + begin, first, 0, end, dim);
}

typedef struct { /* KEYS positions from `begin` on, of which `start` to `end` are seen */
    const int32_t *slots;
    long begin, start, end;
    const TYPE *keys[KEYS], *values[KEYS];
} NAME(KeyBlock);

/* Queries t to t + queries of a tile and one block. */
WIDE INLINE void NAME(attend_few)(Tile *tile, const NAME(KeyBlock) *block, long t, const long queries, const long dim) {
    const Attention *job = tile->job;
    const TYPE *q[FEW];
    long start[FEW], end[FEW], lowest = KEYS, highest = 0;
    float score[FEW][KEYS], keep[FEW];
    for (long g = 0; g < queries; g++) {
        q[g] = (const TYPE *)job->q + tile->row_of[t + g] * job->q_stride + tile->head_of[t + g] * dim;
        start[g] = tile->first[t + g] > block->begin ? tile->first[t + g] - block->begin : 0;
        end[g] = tile->end[t + g] - block->begin < KEYS ? tile->end[t + g] - block->begin : KEYS;
        lowest = start[g] < lowest ? start[g] : lowest, highest = end[g] > highest ? end[g] : highest;
    }
    for (long j = lowest / LANES * LANES; j < highest; j += LANES) {
        const long from = j < block->start ? block->start : j, to = j + LANES < block->end ? j + LANES : block->end;
        if (tile->queries <= FEW) NAME(prefetch_rows)(job, job->values, block->slots, tile->head * dim, from, to, dim);
#pragma GCC unroll 4
        for (long g = 0; g < queries; g++) NAME(score_keys)(q[g], block->keys + j, job->scale, &score[g][j], dim);
    }
    for (long g = 0; g < queries; g++) {
        if (start[g] >= end[g]) continue;
        if (job->softcap) cap(score[g] + start[g], end[g] - start[g], job->softcap);
        keep[g] = soften(score[g], start[g], end[g], &tile->most[t + g], &tile->total[t + g]);
    }
    NAME(mix_seen)((const TYPE *const *)block->values, score, keep, tile->mixed + t * dim, start, end, queries, dim);
}

WIDE INLINE void NAME(attend_block)(Tile *tile, const int32_t *slots, long begin, long from, long to, const long dim) {
    const Attention *job = tile->job;
    const long first = tile->head * dim, start = from > begin ? from - begin : 0, end = to - begin < KEYS ? to - begin : KEYS;
    NAME(KeyBlock) block = {slots + begin, begin, start, end, {0}, {0}};
    TYPE *room = job->eight || tile->queries > FEW ? aligned_space(2 * KEYS * dim * sizeof(TYPE)) : NULL;
    if (!room || begin <= from) NAME(prefetch_rows)(job, job->keys, block.slots, first, start, end, dim);
    if (room && begin + KEYS < to) NAME(prefetch_block)(job, slots, first, begin + KEYS, to, dim);
    NAME(find_rows)(job, job->keys, block.slots, first, start, end, block.keys, room, dim);
    NAME(find_rows)(job, job->values, block.slots, first, start, end, block.values, room ? room + KEYS * dim : NULL, dim);
    for (long t = 0; t < tile->queries; t += FEW) switch (tile->queries - t) {
        case 1: NAME(attend_few)(tile, &block, t, 1, dim); break;
        case 2: NAME(attend_few)(tile, &block, t, 2, dim); break;
        case 3: NAME(attend_few)(tile, &block, t, 3, dim); break;
        default: NAME(attend_few)(tile, &block, t, FEW, dim); break;
    }
}

WIDE INLINE void NAME(write_mixed)(const Tile *tile, const long dim) {
    const Attention *job = tile->job;
    for (long t = 0; t < tile->queries; t++) {
        const float *mixed = tile->mixed + t * dim;
        TYPE *out = (TYPE *)job->out + (tile->row_of[t] * job->kv_heads * job->group + tile->head_of[t]) * dim;
        const __m512 share = _mm512_set1_ps(share_of_keys(job, tile->head_of[t], tile->most[t], tile->total[t]) * job->v_scale);
        for (long i = 0; i < dim; i += CHUNK)
            NAME(join_chunk)(out + i, _mm512_mul_ps(_mm512_loadu_ps(mixed + i), share), _mm512_mul_ps(_mm512_loadu_ps(mixed + i + LANES), share));
    }
}

WIDE INLINE void NAME(attend_tile)(Tile *tile, const long dim) {
    const long from = tile->first[0], to = tile->end[tile->queries - 1];
    const int32_t *slots = origin_of(tile->job, tile->row_of[0]);
    for (long i = 0; i < tile->queries * dim; i++) tile->mixed[i] = 0;
    for (long begin = from / KEYS * KEYS; begin < to; begin += KEYS) NAME(attend_block)(tile, slots, begin, from, to, dim);
    NAME(write_mixed)(tile, dim);
}

WIDE static void NAME(attend_widely)(const void *work, long index) {
    const Tiles *tiles = work;
    const long group = tiles->job->group, dim = tiles->job->dim, most = most_in_tile(dim);
    for (long from = 0; from < group; from += most) {
        Tile tile;
        fill_tile(tiles, index, from, group - from < most ? group - from : most, &tile);
        if (dim == 64) NAME(attend_tile)(&tile, 64);
        else if (dim == 128) NAME(attend_tile)(&tile, 128);
        else NAME(attend_tile)(&tile, dim);
    }
}
#else
static int NAME(has_wide)(long dim) { return (void)dim, 0; }
static void NAME(attend_widely)(const void *work, long index) { (void)work, (void)index; }
#endif
