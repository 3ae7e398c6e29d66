/* Which rows of a step have which adapters, and the products of packed pairs, which are bfloat16, by AVX512_BF16: exact products of two numbers,
   added in float32.

   Packed, A is [pieces * rank / 8] [inputs / 32] [8] [32] and B [outputs / 32] [rank / 2] [32] [2], as weights are. Then A x is rounded to bfloat16. */

#include "../base/avx512.h"
#include "../base/cpu_isa.h"
#include "../gemm/dense_gemm_avx512.h"
#include "../gemm/gemm.h"
#include "lora_products.h"

INTERNAL void group_rows(ByAdapter *by, const int64_t *slots, const int64_t *wanted, long rows) {
    by->rows = by->count = 0;
    for (int64_t slot = -1, next; by->rows < rows; slot = next) {
        next = INT64_MAX;
        for (long i = 0; i < rows; i++) {
            const int64_t its = slots[wanted ? wanted[i] : i];
            if (its > slot && its < next) next = its;
        }
        if (next == INT64_MAX) return;
        for (long i = 0; i < rows; i++) {
            if (slots[wanted ? wanted[i] : i] != next) continue;
            const RowGroup *last = by->count ? &by->group[by->count - 1] : NULL;
            if (!last || last->slot != next || last->end - last->begin == GROUP_ROWS) by->group[by->count++] = (RowGroup){next, by->rows, by->rows};
            by->row[by->rows++] = (int32_t)i, by->group[by->count - 1].end++;
        }
    }
}

/* The lines from `first` to `end` as pieces to fetch, after the `count` that there are. */
INTERNAL long pieces_of(const void *from, long first, long end, const char **pieces, long count) {
    for (; first < end && count < FETCHED; first += FETCHED_LINES) pieces[count++] = (const char *)from + first * 64;
    return count;
}

#if defined(__x86_64__)

AVX512_BF16 INLINE __m512 wide_of(const bfloat16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16));
}

/* The sum of each of four registers. */
AVX512_BF16 INLINE __m128 add_four(const __m512 *sums) {
    const __m512 quarters = add_quarters(sums);
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(quarters), 1)));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

/* Of `rows` rows, whose inputs and results are at x and h. a: eight rows of A. */
AVX512_BF16 INLINE void shrink_some(const bfloat16 *a, long inputs, const bfloat16 *const *x, bfloat16 *const *h, const long rows) {
    __m512 sums[3][8];
#pragma GCC unroll 3
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (long k = 0; k < 8; k++) sums[r][k] = _mm512_setzero_ps();
    for (long i = 0; i < inputs; i += 2 * LANES, a += 8 * 2 * LANES) {
        __m512bh given[3];
#pragma GCC unroll 3
        for (long r = 0; r < rows; r++) given[r] = (__m512bh)_mm512_loadu_si512(x[r] + i);
#pragma GCC unroll 8
        for (long k = 0; k < 8; k++) {
            const __m512bh weights = (__m512bh)_mm512_loadu_si512(a + k * 2 * LANES);
            __builtin_prefetch((const char *)(a + k * 2 * LANES) + ADAPT_FAR);
#pragma GCC unroll 3
            for (long r = 0; r < rows; r++) add_products(&sums[r][k], weights, given[r]);
        }
    }
#pragma GCC unroll 3
    for (long r = 0; r < rows; r++)
        _mm_storeu_si128((void *)h[r], (__m128i)_mm256_cvtneps_pbh(_mm256_set_m128(add_four(sums[r] + 4), add_four(sums[r]))));
}

/* Eight numbers of A x, from `first` on. h: of the first row; a row of h begins `width` floats after the one before. */
AVX512_BF16 INTERNAL void shrink_packed(const Pair *pair, long first, const bfloat16 *x, const int32_t *row, long rows, float *h, long width) {
    const bfloat16 *a = (const bfloat16 *)pair->a + first * pair->inputs;
    for (long i = 0, some; i < rows; i += some) {
        const bfloat16 *from[3];
        bfloat16 *to[3];
        some = rows - i < 3 ? rows - i : 3;
        for (long r = 0; r < some; r++) from[r] = x + row[i + r] * pair->inputs, to[r] = (bfloat16 *)(h + (i + r) * width) + first;
        switch (some) {
            case 1: shrink_some(a, pair->inputs, from, to, 1); break;
            case 2: shrink_some(a, pair->inputs, from, to, 2); break;
            default: shrink_some(a, pair->inputs, from, to, 3);
        }
    }
}

/* h, y: of each row, whose numbers of this piece and outputs they are. */
AVX512_BF16 INLINE void expand_some(const Pair *pair, const bfloat16 *const *h, __m512 scale, long output, bfloat16 *const *y, const long rows, const long blocks) {
    const long pairs = pair->rank / 2;
    const bfloat16 *b = (const bfloat16 *)pair->b + output * pair->rank;
    __m512 sums[2][4];
#pragma GCC unroll 2
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_setzero_ps();
    for (long p = 0; p < pairs; p++) {
        __m512bh weights[4];
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) weights[v] = (__m512bh)_mm512_loadu_si512(b + (v / 2 * pairs + p) * 2 * BLOCK + v % 2 * 2 * LANES);
#pragma GCC unroll 2
        for (long r = 0; r < rows; r++) {
            int32_t two;
            memcpy(&two, h[r] + 2 * p, 4);
            const __m512bh inputs = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) add_products(&sums[r][v], weights[v], inputs);
        }
    }
#pragma GCC unroll 2
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            bfloat16 *to = y[r] + output + v * LANES;
            _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh(_mm512_fmadd_ps(sums[r][v], scale, wide_of(to))));
        }
}

/* y += scale * B h of one or two rows, for the outputs from `first` to `last`, multiples of BLOCK. */
AVX512_BF16 INTERNAL void expand_packed(const Pair *pair, const bfloat16 *const *h, float factor, long first, long last, bfloat16 *const *y, long rows) {
    const __m512 scale = _mm512_set1_ps(factor);
    for (long blocks; first < last; first += blocks * BLOCK) {
        blocks = first + 2 * BLOCK <= last ? 2 : 1;
        if (rows == 2 && blocks == 2) expand_some(pair, h, scale, first, y, 2, 2);
        else if (rows == 2) expand_some(pair, h, scale, first, y, 2, 1);
        else if (blocks == 2) expand_some(pair, h, scale, first, y, 1, 2);
        else expand_some(pair, h, scale, first, y, 1, 1);
    }
}
#else
INTERNAL void shrink_packed(const Pair *pair, long first, const bfloat16 *x, const int32_t *row, long rows, float *h, long width) { (void)pair, (void)first, (void)x, (void)row, (void)rows, (void)h, (void)width; }
INTERNAL void expand_packed(const Pair *pair, const bfloat16 *const *h, float factor, long first, long last, bfloat16 *const *y, long rows) { (void)pair, (void)h, (void)factor, (void)first, (void)last, (void)y, (void)rows; }
#endif
