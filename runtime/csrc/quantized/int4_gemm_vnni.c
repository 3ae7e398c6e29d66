/* Sums of int4_gemm.c by AVX512_VNNI, whose instruction multiplies 64 bytes without sign by as many with one, and adds fours in int32. */

#include "../base/cpu_isa.h"
#include "quantized_groups_vnni.h"
#include "int4_gemm.h"

#if defined(__x86_64__)
/* sums += weights * inputs. Written out because GCC gives the intrinsic's sums a second set of registers. */
AVX512_VNNI INLINE void add_whole_fours(__m512i *sums, __m512i weights, __m512i inputs) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(weights), "v"(inputs));
}

AVX512_VNNI INLINE __m512i four_of_x(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

/* What 16 outputs have of 8 inputs: weights[0] of the first four, weights[1] of the others. entries: of the table, if there is one. */
AVX512_VNNI INLINE void eight_of_codes(const uint8_t *at, __m512i entries, __m512i *weights, const int kind) {
    const __m512i low_half = _mm512_set1_epi8(15), both = _mm512_loadu_si512(at);
    __builtin_prefetch(at + FAR);
    if (kind == BYTES) {
        __builtin_prefetch(at + FAR + LINE_BYTES);
        weights[0] = both, weights[1] = _mm512_loadu_si512(at + LINE_BYTES);
        return;
    }
    weights[0] = _mm512_and_si512(both, low_half), weights[1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
    if (kind == HALVES_OF_TABLE) weights[0] = _mm512_shuffle_epi8(entries, weights[0]), weights[1] = _mm512_shuffle_epi8(entries, weights[1]);
}

/* sums [rows][2] += a chunk's products, those of 16 outputs in a register. Four numbers of x are loaded once for both halves
   of a block: one load for each product would be all that this CPU loads. */
AVX512_VNNI INLINE void dots_vnni(const Grouping *g, const int8_t *x, const uint8_t *codes, __m512i sums[12][2], const long rows, const int kind) {
    const long size = g->chunk, step = kind == BYTES ? 2 * LINE_BYTES : LINE_BYTES;
    __m512i entries = _mm512_setzero_si512();
    if (kind == HALVES_OF_TABLE) entries = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)g->table));
    for (long i = 0; i < size; i += 8, codes += step) {
        __m512i weights[2][2];
        eight_of_codes(codes, entries, weights[0], kind);
        eight_of_codes(codes + 4 * LANES, entries, weights[1], kind);
#pragma GCC unroll 2
        for (long four = 0; four < 2; four++)
#pragma GCC unroll 12
            for (long r = 0; r < rows; r++) {
                const __m512i inputs = four_of_x(x + r * MOST_CHUNK + i + 4 * four);
                add_whole_fours(&sums[r][0], weights[0][four], inputs);
                add_whole_fours(&sums[r][1], weights[1][four], inputs);
            }
    }
}

/* totals [rows][BLOCK], of zeros the first time, += a chunk's sums under their scales. at: of these in the block. Row by row: the
   other order runs out of registers, and so does GCC where zeros are written before. */
AVX512_VNNI INLINE void scale_vnni(const Grouping *g, const Chunk *chunk, const char *block, long at, __m512i sums[12][2], float *totals, const long rows, int first) {
    const int shifted = g->shifts != NO_SHIFT;
    const __m512 scale[2] = {scales_vnni(g, block, at), scales_vnni(g, block, at + LANES)};
    __m512 shift[2] = {scale[0], scale[1]};
    if (shifted) shift[0] = shifts_vnni(g, block, at, scale[0]), shift[1] = shifts_vnni(g, block, at + LANES, scale[1]);
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++) {
        const __m512 of_x = _mm512_set1_ps(chunk[r].scale), sum_of_x = _mm512_set1_ps(chunk[r].sum);
#pragma GCC unroll 2
        for (long v = 0; v < 2; v++) {
            float *to = totals + r * BLOCK + v * LANES;
            const __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(to);
            __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][v]), _mm512_mul_ps(scale[v], of_x), before);
            if (shifted) total = _mm512_fmadd_ps(shift[v], sum_of_x, total);
            _mm512_store_ps(to, total);
        }
    }
}

AVX512_VNNI INLINE void sums_vnni(const Product *job, long row, long index, const long rows, const int kind) {
    const Grouping *g = grouping(job);
    const char *block = (const char *)job->weight->data + index * g->stride;
    const Chunk *chunk = chunks_of(job, row);
    const int8_t *x = wholes_of(job, row);
    const uint8_t *codes = (const uint8_t *)block + g->codes;
    float totals[12 * BLOCK] __attribute__((aligned(64)));
    prefetch(block + FAR, g->codes); /* between what the last block has fetched ahead, and what this one will */
    long place = 0, of_group = 0;
    for (long c = 0; c < g->chunks; c++, chunk += job->rows, x += job->rows * MOST_CHUNK, codes += code_bytes(g, g->chunk)) {
        __m512i sums[12][2];
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm512_set1_epi32(chunk[r].start);
        dots_vnni(g, x, codes, sums, rows, kind);
        scale_vnni(g, chunk, block, place, sums, totals, rows, c == 0);
        if ((of_group += g->chunk) == g->group) of_group = 0, place += BLOCK;
    }
    finish_groups(job, row, rows, index, totals);
}

AVX512_VNNI INLINE void blocks_vnni(const Product *job, long row, long rows, long block, long end, const int kind) {
    for (; block < end; block++) {
#define FEW_ROWS(r) sums_vnni(job, row, block, r, kind)
#define MORE_ROWS(r) sums_vnni(job, row, block, r + 6, kind)
        if (rows <= 6) { EACH_ROWS(rows, FEW_ROWS) } else { EACH_ROWS(rows - 6, MORE_ROWS) }
#undef FEW_ROWS
#undef MORE_ROWS
    }
}

#define BLOCKS_OF(name, kind) \
    AVX512_VNNI INTERNAL void name(const Product *job, long row, long rows, long block, long end) { blocks_vnni(job, row, rows, block, end, kind); }
BLOCKS_OF(blocks_halves_vnni, HALVES)
BLOCKS_OF(blocks_table_vnni, HALVES_OF_TABLE)
BLOCKS_OF(blocks_bytes_vnni, BYTES)
#undef BLOCKS_OF

#endif
