/* Sums of small_float_gemm.c of float8 and bfloat16 by AVX512_BF16, whose instruction multiplies pairs of bfloat16 exactly and adds them in
   float32: every float8 is a bfloat16, whose two bytes AVX512_VBMI looks up. A fourth variant, of bfloat16 alone: the bits of a row do
   not depend on the batch, but are not those of the other variants, which have a sum for the even inputs and one for the odd ones. */

#include "../base/cpu_isa.h"
#include "small_float_gemm.h"
#include "quantized_groups_vnni.h"
#include "quantized_gemm.h"

#if defined(__x86_64__)
static uint8_t float8_bytes[2][128] __attribute__((aligned(64))); /* low and high bytes of 2^-8 of each, as scales have 2^8 */
static uint8_t float8_order[64] __attribute__((aligned(64)));     /* which code of two inputs each pair of bytes is looked up for */

INTERNAL void fill_float8(void) { /* once, when the module is made */
    for (int code = 0; code < 128; code++) {
        const bfloat16 value = from_float_bf16(half_to_float((uint16_t)(code << 7)));
        float8_bytes[0][code] = (uint8_t)value, float8_bytes[1][code] = (uint8_t)(value >> 8);
    }
    for (int i = 0; i < 64; i++) /* four outputs of the first 16 and four of the others in turn, the even input before the odd one */
        float8_order[i] = (uint8_t)(i % 2 * BLOCK + i / 8 % 2 * LANES + i / 16 * 4 + i % 8 / 2);
}

/* Pairs of weights of two inputs, for the first 16 outputs and the others. tables: of the bytes, 64 in each. */
AVX512_PAIRS INLINE void float8_pairs(const uint8_t *codes, const __m512i tables[4], __m512i order, __m512bh pairs[2]) {
    const __m512i both = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(codes));
    const __m512i low = _mm512_permutex2var_epi8(tables[0], both, tables[1]), size = _mm512_permutex2var_epi8(tables[2], both, tables[3]);
    const __m512i high = _mm512_ternarylogic_epi32(size, both, _mm512_set1_epi8((char)0x80), 0xf8); /* size | (both & 0x80) */
    pairs[0] = (__m512bh)_mm512_unpacklo_epi8(low, high), pairs[1] = (__m512bh)_mm512_unpackhi_epi8(low, high);
}

/* sums += weights * a pair of x. Written out because GCC keeps x of every row in a register, and runs out. */
AVX512_PAIRS INLINE void add_pair(__m512 *sums, __m512bh weights, const bfloat16 *x) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(*sums) : "v"(weights), "m"(*(const int32_t *)x));
}

AVX512_PAIRS INLINE void float8_sums(const Product *job, long row, long index, const long rows) {
    const Grouping *g = grouping(job);
    const long n = even(job->weight->inputs);
    const char *block = (const char *)job->weight->data + index * g->stride;
    const bfloat16 *x = (const bfloat16 *)job->x + row * n;
    const uint8_t *codes = (const uint8_t *)block + g->codes;
    const __m512i order = _mm512_load_si512(float8_order);
    __m512i tables[4];
    for (int t = 0; t < 4; t++) tables[t] = _mm512_load_si512(float8_bytes[t / 2] + t % 2 * 64);
    float totals[FLOAT_ROWS * BLOCK] __attribute__((aligned(64)));
    memset(totals, 0, rows * BLOCK * sizeof(float));
    prefetch(block + FAR, g->codes);
    for (long from = 0, place = 0; from < n; from += g->group, place += BLOCK) {
        const long end = from + g->group < n ? from + g->group : n;
        __m512 sums[FLOAT_ROWS][2];
        __m512bh pairs[2];
#pragma GCC unroll 6
        for (long r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        for (long i = from; i < end; i += 2, codes += 2 * BLOCK) {
            __builtin_prefetch(codes + FAR);
            float8_pairs(codes, tables, order, pairs);
#pragma GCC unroll 6
            for (long r = 0; r < rows; r++) add_pair(&sums[r][0], pairs[0], x + r * n + i), add_pair(&sums[r][1], pairs[1], x + r * n + i);
        }
#pragma GCC unroll 2
        for (long v = 0; v < 2; v++) {
            const __m512 scale = scales_vnni(g, block, place + v * LANES);
#pragma GCC unroll 6
            for (long r = 0; r < rows; r++) {
                float *to = totals + r * BLOCK + v * LANES;
                _mm512_store_ps(to, _mm512_fmadd_ps(sums[r][v], scale, _mm512_load_ps(to)));
            }
        }
    }
    finish_groups(job, row, rows, index, totals);
}

AVX512_PAIRS INTERNAL void blocks_float8_pairs(const Product *job, long row, long rows, long block, long end) {
    for (; block < end; block++)
        for (long from = row, left = rows; left > 0; from += FLOAT_ROWS, left -= FLOAT_ROWS) {
#define SOME(r) float8_sums(job, from, block, r)
            EACH_ROWS(left < FLOAT_ROWS ? left : FLOAT_ROWS, SOME)
#undef SOME
        }
}

#else
INTERNAL void fill_float8(void) {}
#endif
