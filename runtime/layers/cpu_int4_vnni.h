/* Sums of cpu_int4.h by AVX512_VNNI, whose instruction multiplies 64 bytes without sign by as many with one, and adds fours in int32. */

/* sums += weights * four whole numbers of x. Written out because GCC gives the intrinsic's sums a second set of registers. */
VNNI INLINE void add_whole_fours(__m512i *sums, __m512i weights, const int8_t *x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*sums) : "v"(weights), "m"(*(const int32_t *)x));
}

VNNI INLINE __m512 twofold_vnni(const Grouping *g, const char *inner, long at) {
    const __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(inner + at))));
    return _mm512_mul_ps(first, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)outer_at(g, inner, at))));
}

VNNI INLINE __m512 scales_vnni(const Grouping *g, const char *block, long at) {
    if (g->scales == TWOFOLD_SCALES) return twofold_vnni(g, block, at);
    if (g->scales == HALF_SCALES) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(block + 2 * at)));
    return _mm512_loadu_ps((const float *)block + at);
}

VNNI INLINE __m512 shifts_vnni(const Grouping *g, const char *block, long at, __m512 scale) {
    const char *shifts = shifts_of(g, block);
    if (g->shifts == TWOFOLD_SHIFTS) return twofold_vnni(g, shifts, at);
    if (g->shifts == SHIFTS) return _mm512_loadu_ps((const float *)shifts + at);
    if (g->shifts == HALF_SHIFTS) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(shifts + 2 * at)));
    __m512 zero = g->shifts == ZERO_BYTES ? _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(shifts + at))))
                                          : _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(shifts + 2 * at)));
    return _mm512_mul_ps(scale, _mm512_sub_ps(_mm512_setzero_ps(), zero));
}

/* A chunk's exact sums, those of 16 outputs in a register. `apart` is 2 where low and high halves have sums of their own: a
   single row's would wait for each other. */
VNNI INLINE void dots_vnni(const Grouping *g, const int8_t *x, const uint8_t *codes, __m512i sums[12][2][2], const long rows,
                           const long apart, const int kind) {
    const __m512i low_half = _mm512_set1_epi8(15);
    __m512i entries = _mm512_setzero_si512();
    if (kind == HALVES_OF_TABLE) entries = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)g->table));
    for (long i = 0; i < g->chunk; i += 8, codes += kind == BYTES ? 2 * LINE_BYTES : LINE_BYTES)
#pragma GCC unroll 2
        for (long v = 0; v < 2; v++) {
            const uint8_t *at = codes + v * 4 * LANES;
            __builtin_prefetch(at + FAR);
            __m512i low = _mm512_loadu_si512(at), high;
            if (kind == BYTES) {
                __builtin_prefetch(at + FAR + LINE_BYTES);
                high = _mm512_loadu_si512(at + LINE_BYTES);
            } else {
                high = _mm512_and_si512(_mm512_srli_epi16(low, 4), low_half), low = _mm512_and_si512(low, low_half);
            }
            if (kind == HALVES_OF_TABLE) low = _mm512_shuffle_epi8(entries, low), high = _mm512_shuffle_epi8(entries, high);
#pragma GCC unroll 12
            for (long r = 0; r < rows; r++) {
                add_whole_fours(&sums[r][v][0], low, x + r * MOST_CHUNK + i);
                add_whole_fours(&sums[r][v][apart - 1], high, x + r * MOST_CHUNK + i + 4);
            }
        }
}

/* totals [rows][BLOCK] += a chunk's products. place: of its scales in the block. */
VNNI INLINE void chunk_vnni(const Grouping *g, const Chunk *chunk, const int8_t *x, const char *block, const uint8_t *codes, long place,
                            float *totals, const long rows, const int kind) {
    const long apart = rows == 1 ? 2 : 1;
    __m512i sums[12][2][2];
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (long v = 0; v < 2; v++) {
            sums[r][v][0] = _mm512_set1_epi32(chunk[r].start);
            if (apart == 2) sums[r][v][1] = _mm512_setzero_si512();
        }
    dots_vnni(g, x, codes, sums, rows, apart, kind);
#pragma GCC unroll 2
    for (long v = 0; v < 2; v++) {
        const __m512 scale = scales_vnni(g, block, place + v * LANES);
        __m512 shift = _mm512_setzero_ps();
        if (g->shifts) shift = shifts_vnni(g, block, place + v * LANES, scale);
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++) {
            float *to = totals + r * BLOCK + v * LANES;
            const __m512i sum = apart == 2 ? _mm512_add_epi32(sums[r][v][0], sums[r][v][1]) : sums[r][v][0];
            __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(chunk[r].scale)), _mm512_load_ps(to));
            if (g->shifts) total = _mm512_fmadd_ps(shift, _mm512_set1_ps(chunk[r].sum), total);
            _mm512_store_ps(to, total);
        }
    }
}

VNNI INLINE void sums_vnni(const Product *job, long row, long index, const long rows, const int kind) {
    const Grouping *g = grouping(job);
    const char *block = (const char *)job->weight->data + index * g->stride;
    const Chunk *chunk = chunks_of(job, row);
    const int8_t *x = wholes_of(job, row);
    const uint8_t *codes = (const uint8_t *)block + g->codes;
    float totals[12 * BLOCK] __attribute__((aligned(64)));
    memset(totals, 0, rows * BLOCK * sizeof(float));
    prefetch(block + FAR, g->codes); /* between what the last block has fetched ahead, and what this one will */
    long place = 0, of_group = 0;
    for (long c = 0; c < g->chunks; c++, chunk += job->rows, x += job->rows * MOST_CHUNK, codes += code_bytes(g, g->chunk)) {
        chunk_vnni(g, chunk, x, block, codes, place, totals, rows, kind);
        if ((of_group += g->chunk) == g->group) of_group = 0, place += BLOCK;
    }
    finish_groups(job, row, rows, index, totals);
}

VNNI INLINE void blocks_vnni(const Product *job, long row, long rows, long block, long end, const int kind) {
    for (; block < end; block++) {
#define FEW_ROWS(r) sums_vnni(job, row, block, r, kind)
#define MORE_ROWS(r) sums_vnni(job, row, block, r + 6, kind)
        if (rows <= 6) { EACH_ROWS(rows, FEW_ROWS) } else { EACH_ROWS(rows - 6, MORE_ROWS) }
#undef FEW_ROWS
#undef MORE_ROWS
    }
}

#define BLOCKS_OF(name, kind) \
    VNNI static void name(const Product *job, long row, long rows, long block, long end) { blocks_vnni(job, row, rows, block, end, kind); }
BLOCKS_OF(blocks_halves_vnni, HALVES)
BLOCKS_OF(blocks_table_vnni, HALVES_OF_TABLE)
BLOCKS_OF(blocks_bytes_vnni, BYTES)
#undef BLOCKS_OF
