/* Products with int8 weights [outputs / 32] [inputs / 2] [32] [2] and a float32 scale per output.

   A row of x becomes int16 with its own scale (2^-15 of its peak is lost, less than bfloat16 itself loses) and
   whole numbers are added in int32: exactly, so that a row's bits do not depend on the others. Needs AVX512_VNNI. */

#include "../base/cpu_isa.h"
#include "../base/thread_scratch.h"
#include "../gemm/gemm_epilogue.h"
#include "quantized_gemm.h"

enum { LARGEST_WHOLE = 16383, EXACT = 1024 }; /* largest int16 of x; inputs whose sum fits: EXACT * 127 * LARGEST_WHOLE < 2^31 */

/* x as the products read it: a scale per row, then the rows. */
INLINE const int16_t *quantized_row(const Product *job, long row) {
    return (const int16_t *)((const float *)job->x + job->rows) + row * job->weight->inputs;
}

/* ----- x to int16 */

#define QUANTIZE(type, suffix) \
    CLONES static float quantize_row_##suffix(const type *x, int16_t *y, long n) { \
        float peak = 0, nonfinite = 0; /* nonfinite is NaN for a row with NaN or infinity, and so is all that comes of it */ \
        _Pragma("omp simd reduction(max : peak) reduction(+ : nonfinite)") for (long i = 0; i < n; i++) { \
            float size = fabsf(to_float_##suffix(x[i])); \
            peak = size > peak ? size : peak; \
            nonfinite += size * 0.0f; \
        } \
        const float inverse = peak > 1e-30f ? LARGEST_WHOLE / peak : 0.0f; \
        _Pragma("omp simd") for (long i = 0; i < n; i++) { \
            float shifted = to_float_##suffix(x[i]) * inverse + 12582912.0f; /* 1.5 * 2^23: the low bits are the whole number */ \
            int32_t bits; \
            memcpy(&bits, &shifted, 4); \
            y[i] = (int16_t)bits; \
        } \
        return peak / LARGEST_WHOLE + nonfinite; \
    }
QUANTIZE(float, f32)
QUANTIZE(bfloat16, bf16)
#undef QUANTIZE

typedef struct {
    const Product *from;
    float *scales;
    int16_t *rows;
} RowQuantization;

static void quantize_piece(const void *work, long index) {
    const RowQuantization *job = work;
    const long n = job->from->weight->inputs, first = index * SOME_ROWS;
    const long end = first + SOME_ROWS < job->from->rows ? first + SOME_ROWS : job->from->rows;
    for (long row = first; row < end; row++)
        job->scales[row] = job->from->weight->kind == INT8_BFLOAT16
            ? quantize_row_bf16((const bfloat16 *)job->from->x + row * n, job->rows + row * n, n)
            : quantize_row_f32((const float *)job->from->x + row * n, job->rows + row * n, n);
}

/* ----- the end of a sum */

/* Both scales are applied in float32. */
INLINE void finish_row(const Product *job, long row, long output, long count, const float *totals) {
    const Weight *weight = job->weight;
    const float of_row = ((const float *)job->x)[row], *scale = (const float *)weight->scale + output;
    float sums[BLOCK];
#pragma omp simd
    for (long o = 0; o < count; o++) sums[o] = totals[o] * of_row * scale[o];
    end_row(job, weight->kind == INT8_FLOAT32, row, output, count, sums);
}

/* totals: [rows][BLOCK] of one block, in the order of its outputs. */
CLONES static void finish_block(const Product *job, long row, long rows, long block, const float *totals) {
    const long output = block * BLOCK, left = job->weight->outputs - output;
    for (long r = 0; r < rows; r++, totals += BLOCK)
        if (left >= BLOCK) finish_row(job, row + r, output, BLOCK, totals);
        else finish_row(job, row + r, output, left, totals);
}

/* ----- sums by AVX512_VNNI, whose instruction multiplies 16 pairs of int16 and adds them in int32 */

#if defined(__x86_64__)

/* sums += weights * inputs. Written out because GCC gives the intrinsic's sums a second set of registers, and runs out. */
AVX512_VNNI INLINE void add_whole_pairs(__m512i *sums, __m512i weights, __m512i inputs) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*sums) : "v"(weights), "v"(inputs));
}

AVX512_VNNI INLINE void sums_int8(const Product *job, long row, long block, const long rows, const long blocks) {
    const long n = job->weight->inputs, pairs = n / 2;
    const int16_t *x = quantized_row(job, row);
    const int8_t *w = (const int8_t *)job->weight->data + block * n * BLOCK;
    float totals[2][12 * BLOCK];
    for (long from = 0; from < pairs; from += EXACT / 2) {
        const long end = from + EXACT / 2 < pairs ? from + EXACT / 2 : pairs;
        __m512i sums[12][4];
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_setzero_si512();
        for (long i = from; i < end; i++) {
            __m512i weights[4];
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) {
                const int8_t *at = w + (v / 2 * pairs + i) * 2 * BLOCK + v % 2 * 2 * LANES;
                if (v % 2 == 0) __builtin_prefetch(at + FAR);
                weights[v] = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)at));
            }
#pragma GCC unroll 12
            for (long r = 0; r < rows; r++) {
                int32_t pair;
                memcpy(&pair, x + r * n + 2 * i, 4);
                __m512i inputs = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
                for (long v = 0; v < 2 * blocks; v++) add_whole_pairs(&sums[r][v], weights[v], inputs);
            }
        }
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) {
                float *at = totals[v / 2] + r * BLOCK + v % 2 * LANES;
                __m512 sum = _mm512_cvtepi32_ps(sums[r][v]);
                _mm512_storeu_ps(at, from ? _mm512_add_ps(_mm512_loadu_ps(at), sum) : sum);
            }
    }
    for (long b = 0; b < blocks; b++) finish_block(job, row, rows, block + b, totals[b]);
}

#define BLOCKS AVX512_VNNI INTERNAL void blocks_int8
#define SUMS sums_int8
#include "../gemm/gemm_row_blocks.inc"
#else
INTERNAL void blocks_int8(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
#endif

/* ----- the whole product */

INTERNAL void product_int8(const Product *job) {
    const long rows = job->rows, n = job->weight->inputs;
    if (!rows) return;
    float *scales = row_scratch(rows * (sizeof(float) + n * sizeof(int16_t)));
    RowQuantization quantization = {job, scales, (int16_t *)(scales + rows)};
    share(quantize_piece, &quantization, (rows + SOME_ROWS - 1) / SOME_ROWS);
    Product quantized = *job;
    quantized.x = scales;
    share_product(&quantized);
}
