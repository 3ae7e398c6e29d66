/* Sums of int4_gemm.c by AVX2, whose instruction multiplies bytes without sign by bytes with one, and adds pairs in int16.

   Codes up to 15: four steps fit int16, 8 * 15 * 127 < 2^15. A table's entries, and codes of eight bits less 128, have a sign,
   which goes over to x: then one step fits, 2 * 128 * 127 < 2^15. */

#include "../base/cpu_isa.h"
#include "quantized_groups_avx2.h"
#include "int4_gemm.h"

#if defined(__x86_64__)
enum { STEPS = 4 };

AVX2 INLINE __m256i four_of(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}

/* sums: [rows] of a chunk, 8 outputs each; they begin where the chunks say. */
AVX2 INLINE void dots_avx2(const Grouping *g, const int8_t *x, const uint8_t *codes, __m256i *sums, const long rows) {
    const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    for (long from = 0; from < g->chunk; from += 8 * STEPS) {
        const long end = from + 8 * STEPS < g->chunk ? from + 8 * STEPS : g->chunk;
        __m256i pairs[ROWS_AVX2];
        for (long r = 0; r < rows; r++) pairs[r] = _mm256_setzero_si256();
        for (long i = from; i < end; i += 8, codes += LINE_BYTES) {
            const __m256i both = _mm256_loadu_si256((const void *)codes);
            const __m256i low = _mm256_and_si256(both, low_half), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
            for (long r = 0; r < rows; r++) {
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(low, four_of(x + r * MOST_CHUNK + i)));
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(high, four_of(x + r * MOST_CHUNK + i + 4)));
            }
        }
        for (long r = 0; r < rows; r++) sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(pairs[r], ones));
    }
}

AVX2 INLINE __m256i add_signed(__m256i sum, __m256i weights, __m256i x) { /* weights: -128 too, whose size has no sign */
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

AVX2 INLINE void dots_avx2_table(const Grouping *g, const int8_t *x, const uint8_t *codes, __m256i *sums, const long rows) {
    const __m256i low_half = _mm256_set1_epi8(15);
    const __m128i above = _mm_sub_epi8(_mm_loadu_si128((const void *)g->table), _mm_set1_epi8((char)g->above));
    const __m256i entries = _mm256_broadcastsi128_si256(above);
    for (long i = 0; i < g->chunk; i += 8, codes += LINE_BYTES) {
        const __m256i both = _mm256_loadu_si256((const void *)codes);
        const __m256i low = _mm256_shuffle_epi8(entries, _mm256_and_si256(both, low_half));
        const __m256i high = _mm256_shuffle_epi8(entries, _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half));
        for (long r = 0; r < rows; r++) {
            sums[r] = add_signed(sums[r], low, four_of(x + r * MOST_CHUNK + i));
            sums[r] = add_signed(sums[r], high, four_of(x + r * MOST_CHUNK + i + 4));
        }
    }
}

AVX2 INLINE void dots_avx2_bytes(const Grouping *g, const int8_t *x, const uint8_t *codes, __m256i *sums, const long rows) {
    const __m256i middle = _mm256_set1_epi8((char)128);
    for (long i = 0; i < g->chunk; i += 4, codes += LINE_BYTES) {
        const __m256i weights = _mm256_xor_si256(_mm256_loadu_si256((const void *)codes), middle);
        for (long r = 0; r < rows; r++) sums[r] = add_signed(sums[r], weights, four_of(x + r * MOST_CHUNK + i));
    }
}

/* Some rows by 8 outputs, to totals [rows][BLOCK]. lane: of the outputs in their block. */
AVX2 INLINE void sums_avx2(const Product *job, long row, const char *at, long lane, float *totals, const long rows, const int kind) {
    const Grouping *g = grouping(job);
    const Chunk *chunk = chunks_of(job, row);
    const int8_t *x = wholes_of(job, row);
    const uint8_t *codes = (const uint8_t *)at + g->codes + 4 * lane;
    __m256 sums[ROWS_AVX2];
    for (long r = 0; r < rows; r++) sums[r] = _mm256_setzero_ps();
    long place = lane, of_group = 0;
    for (long c = 0; c < g->chunks; c++, chunk += job->rows, x += job->rows * MOST_CHUNK, codes += code_bytes(g, g->chunk)) {
        __m256i dots[ROWS_AVX2];
        for (long r = 0; r < rows; r++) {
            dots[r] = _mm256_set1_epi32(chunk[r].start + (kind == HALVES ? 0 : chunk[r].above));
        }
        if (kind == BYTES) dots_avx2_bytes(g, x, codes, dots, rows);
        else if (kind == HALVES_OF_TABLE) dots_avx2_table(g, x, codes, dots, rows);
        else dots_avx2(g, x, codes, dots, rows);
        const __m256 scale = scales_avx2(g, at, place);
        const __m256 shift = g->shifts ? shifts_avx2(g, at, place, scale) : scale;
        for (long r = 0; r < rows; r++) {
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_mul_ps(scale, _mm256_set1_ps(chunk[r].scale)), sums[r]);
            if (g->shifts) sums[r] = _mm256_fmadd_ps(shift, _mm256_set1_ps(chunk[r].sum), sums[r]);
        }
        if ((of_group += g->chunk) == g->group) of_group = 0, place += BLOCK;
    }
    for (long r = 0; r < rows; r++) _mm256_storeu_ps(totals + r * BLOCK + lane, sums[r]);
}

AVX2 INLINE void blocks_avx2(const Product *job, long row, long rows, long block, long end, const int kind) {
    for (; block < end; block++) {
        const char *at = (const char *)job->weight->data + block * grouping(job)->stride;
        float totals[MOST_AT_ONCE * BLOCK];
        for (long lane = 0; lane < BLOCK; lane += EIGHT)
            for (long r = 0; r < rows; r += ROWS_AVX2) {
                float *to = totals + r * BLOCK;
#define SOME(count) sums_avx2(job, row + r, at, lane, to, count, kind)
                if (rows - r >= ROWS_AVX2) SOME(ROWS_AVX2);
                else if (rows - r == 3) SOME(3);
                else if (rows - r == 2) SOME(2);
                else SOME(1);
#undef SOME
            }
        finish_groups(job, row, rows, block, totals);
    }
}

#define BLOCKS_OF(name, kind) \
    AVX2 INTERNAL void name(const Product *job, long row, long rows, long block, long end) { blocks_avx2(job, row, rows, block, end, kind); }
BLOCKS_OF(blocks_halves_avx2, HALVES)
BLOCKS_OF(blocks_table_avx2, HALVES_OF_TABLE)
BLOCKS_OF(blocks_bytes_avx2, BYTES)
#undef BLOCKS_OF

#endif
