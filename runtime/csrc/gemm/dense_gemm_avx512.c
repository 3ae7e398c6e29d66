/* Products of float32 weights by AVX-512, and of bfloat16 weights by AVX512_BF16. */

#include "../base/avx512.h"
#include "../base/cpu_isa.h"
#include "dense_gemm.h"
#include "dense_gemm_avx512.h"

#if defined(__x86_64__)

/* ----- float32 by AVX-512 */

AVX512_F32 INLINE void finish_f32(const Product *job, long row, long output, __m512 sum) {
    const long left = job->weight->outputs - output, place = row * job->width + output;
    if (left <= 0) return;
    const __mmask16 mask = lanes_left(left);
    if (job->weight->bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, (const float *)job->weight->bias + output));
    if (job->residual) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, (const float *)job->residual + place));
    _mm512_mask_storeu_ps((float *)job->y + place, mask, sum);
}

/* `rows` times `blocks` is at most 12: with the weights and an input that is as many registers as there are. */
AVX512_F32 INLINE void sums_f32(const Product *job, long row, long block, const long rows, const long blocks) {
    const long n = job->weight->inputs;
    const float *x = (const float *)job->x + row * n, *w = (const float *)job->weight->data + block * n * BLOCK;
    __m512 sums[12][4];
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_setzero_ps();
    for (long i = 0; i < n; i++) {
        __m512 weights[4];
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            const float *at = w + (v / 2 * n + i) * BLOCK + v % 2 * LANES;
            __builtin_prefetch((const char *)at + FAR);
            weights[v] = _mm512_loadu_ps(at);
        }
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++) {
            __m512 input = _mm512_set1_ps(x[r * n + i]);
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_fmadd_ps(weights[v], input, sums[r][v]);
        }
    }
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) finish_f32(job, row + r, block * BLOCK + v * LANES, sums[r][v]);
}

#define BLOCKS AVX512_F32 INTERNAL void blocks_f32
#define SUMS sums_f32
#include "gemm_row_blocks.inc"

/* ----- bfloat16 */

AVX512_BF16 INLINE void sums_bf16(const Product *job, long row, long block, const long rows, const long blocks) {
    const long n = job->weight->inputs, pairs = n / 2;
    const bfloat16 *x = (const bfloat16 *)job->x + row * n;
    const bfloat16 *w = (const bfloat16 *)job->weight->data + block * n * BLOCK;
    __m512 sums[12][4];
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_setzero_ps();
    for (long i = 0; i < pairs; i++) {
        __m512bh weights[4];
        if (i < job->lines) __builtin_prefetch(job->fetched[i / FETCHED_LINES] + i % FETCHED_LINES * 64);
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            const bfloat16 *at = w + (v / 2 * pairs + i) * 2 * BLOCK + v % 2 * 2 * LANES;
            __builtin_prefetch((const char *)at + FAR);
            weights[v] = (__m512bh)_mm512_loadu_si512(at);
        }
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * n + 2 * i, 4);
            __m512bh inputs = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) add_products(&sums[r][v], weights[v], inputs);
        }
    }
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) finish_bf16(job, row + r, block * BLOCK + v * LANES, sums[r][v]);
}

#define BLOCKS AVX512_BF16 INTERNAL void blocks_bf16
#define SUMS sums_bf16
#include "gemm_row_blocks.inc"

#else
INTERNAL void blocks_f32(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
INTERNAL void blocks_bf16(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
#endif
