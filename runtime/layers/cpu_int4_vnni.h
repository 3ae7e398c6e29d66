/* Sums of cpu_int4.h by AVX512_VNNI, whose instruction multiplies 64 bytes without sign by as many with one, and adds fours in int32. */

/* sums += weights * four whole numbers of x. Written out because GCC gives the intrinsic's sums a second set of registers. */
VNNI INLINE void add_whole_fours(__m512i *sums, __m512i weights, const int8_t *x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*sums) : "v"(weights), "m"(*(const int32_t *)x));
}

VNNI INLINE __m512 scales_vnni(const Grouping *g, const char *block, long at) {
    if (g->half) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(block + 2 * at)));
    return _mm512_loadu_ps((const float *)block + at);
}

VNNI INLINE __m512 shifts_vnni(const Grouping *g, const char *block, long at, __m512 scale) {
    const char *shifts = block + g->groups * BLOCK * (g->half ? 2 : 4);
    if (g->shifts == SHIFTS) return _mm512_loadu_ps((const float *)shifts + at);
    __m512 zero = g->shifts == ZERO_BYTES ? _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(shifts + at))))
                                          : _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(shifts + 2 * at)));
    return _mm512_mul_ps(scale, _mm512_sub_ps(_mm512_setzero_ps(), zero));
}

/* A chunk's exact sums, those of 16 outputs in a register. */
VNNI INLINE void dots_vnni(const Product *job, const int8_t *x, const uint8_t *codes, __m512i sums[12][4], const long rows, const long blocks,
                           const int table) {
    const Grouping *g = grouping(job);
    const __m512i low_half = _mm512_set1_epi8(15);
    __m512i entries = _mm512_setzero_si512();
    if (table) entries = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)g->table));
    for (long i = 0; i < g->chunk; i += 8, codes += LINE_BYTES)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            const uint8_t *at = codes + v / 2 * g->stride + v % 2 * 4 * LANES;
            __builtin_prefetch(at + FAR);
            const __m512i both = _mm512_loadu_si512(at);
            __m512i low = _mm512_and_si512(both, low_half), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
            if (table) low = _mm512_shuffle_epi8(entries, low), high = _mm512_shuffle_epi8(entries, high);
#pragma GCC unroll 12
            for (long r = 0; r < rows; r++) {
                add_whole_fours(&sums[r][v], low, x + r * MOST_CHUNK + i);
                add_whole_fours(&sums[r][v], high, x + r * MOST_CHUNK + i + 4);
            }
        }
}

VNNI INLINE void sums_vnni(const Product *job, long row, long block, const long rows, const long blocks, const int table) {
    const Grouping *g = grouping(job);
    const char *at = (const char *)job->weight->data + block * g->stride;
    const Chunk *chunk = chunks_of(job, row);
    const int8_t *x = wholes_of(job, row);
    const uint8_t *codes = (const uint8_t *)at + g->codes;
    float totals[2][12 * BLOCK] __attribute__((aligned(64)));
    for (long b = 0; b < blocks; b++) memset(totals[b], 0, rows * BLOCK * sizeof(float));
    long place = 0, of_group = 0;
    for (long c = 0; c < g->chunks; c++, chunk += job->rows, x += job->rows * MOST_CHUNK, codes += g->chunk / 8 * LINE_BYTES) {
        __m512i sums[12][4];
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++)
                sums[r][v] = _mm512_set1_epi32(chunk[r].start);
        dots_vnni(job, x, codes, sums, rows, blocks, table);
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            const char *of_block = at + v / 2 * g->stride;
            const __m512 scale = scales_vnni(g, of_block, place + v % 2 * LANES);
            __m512 shift = _mm512_setzero_ps();
            if (g->shifts) shift = shifts_vnni(g, of_block, place + v % 2 * LANES, scale);
#pragma GCC unroll 12
            for (long r = 0; r < rows; r++) {
                float *to = totals[v / 2] + r * BLOCK + v % 2 * LANES;
                __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), _mm512_mul_ps(scale, _mm512_set1_ps(chunk[r].scale)), _mm512_load_ps(to));
                if (g->shifts) total = _mm512_fmadd_ps(shift, _mm512_set1_ps(chunk[r].sum), total);
                _mm512_store_ps(to, total);
            }
        }
        if ((of_group += g->chunk) == g->group) of_group = 0, place += BLOCK;
    }
    for (long b = 0; b < blocks; b++) finish_int4(job, row, rows, block + b, totals[b]);
}

#define BLOCKS VNNI static void blocks_int4_vnni
#define SUMS(job, row, block, rows, blocks) sums_vnni(job, row, block, rows, blocks, 0)
#include "cpu_blocks.h"
#define BLOCKS VNNI static void blocks_int4_vnni_table
#define SUMS(job, row, block, rows, blocks) sums_vnni(job, row, block, rows, blocks, 1)
#include "cpu_blocks.h"
