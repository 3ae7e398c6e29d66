/* Products of float32 and bfloat16 weights in blocks of 32 outputs (gemm.h) where there is AVX2 and no AVX-512 for them.

   x is float32 here: what is bfloat16 is widened before. A weight of bfloat16 is a float32 without its last 16 bits, so a pair of
   them becomes two numbers by a shift and a mask. A sum runs over the inputs in order, whatever rows it is computed with. */

#include "../base/cpu_isa.h"
#include "../base/thread_scratch.h"
#include "dense_gemm.h"
#include "gemm_epilogue.h"

INTERNAL int dense_isa[2];

#if defined(__x86_64__)
enum { DENSE_VECTORS = BLOCK / 8, DENSE_ROWS = 3, PAIR_ROWS = 2 }; /* rows whose sums the 16 registers hold */

AVX2 INLINE void sums_dense_f32(const Product *job, long row, long block, float (*totals)[BLOCK], const long rows) {
    const long n = job->weight->inputs;
    const float *x = (const float *)job->x + row * n, *w = (const float *)job->weight->data + block * n * BLOCK;
    __m256 sums[DENSE_ROWS][DENSE_VECTORS];
#pragma GCC unroll 3
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < DENSE_VECTORS; v++) sums[r][v] = _mm256_setzero_ps();
    for (long i = 0; i < n; i++, w += BLOCK) {
        __builtin_prefetch((const char *)w + FAR);
        __builtin_prefetch((const char *)w + FAR + 64);
#pragma GCC unroll 4
        for (long v = 0; v < DENSE_VECTORS; v++) {
            const __m256 weight = _mm256_loadu_ps(w + 8 * v);
#pragma GCC unroll 3
            for (long r = 0; r < rows; r++) sums[r][v] = _mm256_fmadd_ps(weight, _mm256_broadcast_ss(x + r * n + i), sums[r][v]);
        }
    }
#pragma GCC unroll 3
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < DENSE_VECTORS; v++) _mm256_storeu_ps(totals[r] + 8 * v, sums[r][v]);
}

AVX2 INLINE void sums_dense_bf16(const Product *job, long row, long block, float (*totals)[BLOCK], const long rows) {
    const long n = job->weight->inputs;
    const float *x = (const float *)job->x + row * n;
    const bfloat16 *w = (const bfloat16 *)job->weight->data + block * n * BLOCK;
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    __m256 sums[PAIR_ROWS][DENSE_VECTORS];
#pragma GCC unroll 2
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < DENSE_VECTORS; v++) sums[r][v] = _mm256_setzero_ps();
    for (long i = 0; i < n; i += 2, w += 2 * BLOCK) {
        __builtin_prefetch((const char *)w + FAR);
        __builtin_prefetch((const char *)w + FAR + 64);
#pragma GCC unroll 4
        for (long v = 0; v < DENSE_VECTORS; v++) {
            const __m256i pair = _mm256_loadu_si256((const __m256i *)(w + 16 * v));
            const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)), second = _mm256_castsi256_ps(_mm256_and_si256(pair, upper));
#pragma GCC unroll 2
            for (long r = 0; r < rows; r++) {
                sums[r][v] = _mm256_fmadd_ps(first, _mm256_broadcast_ss(x + r * n + i), sums[r][v]);
                sums[r][v] = _mm256_fmadd_ps(second, _mm256_broadcast_ss(x + r * n + i + 1), sums[r][v]);
            }
        }
    }
#pragma GCC unroll 2
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < DENSE_VECTORS; v++) _mm256_storeu_ps(totals[r] + 8 * v, sums[r][v]);
}

CLONES static void finish_dense(const Product *job, long row, long rows, long block, float (*totals)[BLOCK]) {
    const long output = block * BLOCK, left = job->weight->outputs - output, wide = !in_bfloat16(job->weight);
    for (long r = 0; r < rows; r++)
        if (left >= BLOCK) end_row(job, wide, row + r, output, BLOCK, totals[r]);
        else end_row(job, wide, row + r, output, left, totals[r]);
}

AVX2 INTERNAL void blocks_f32_avx2(const Product *job, long row, long rows, long block, long end) {
    float totals[MOST_AT_ONCE][BLOCK];
    for (; block < end; block++) {
        for (long r = 0; r < rows; r += DENSE_ROWS) switch (rows - r) {
            case 1: sums_dense_f32(job, row + r, block, totals + r, 1); break;
            case 2: sums_dense_f32(job, row + r, block, totals + r, 2); break;
            default: sums_dense_f32(job, row + r, block, totals + r, DENSE_ROWS);
        }
        finish_dense(job, row, rows, block, totals);
    }
}

AVX2 INTERNAL void blocks_bf16_avx2(const Product *job, long row, long rows, long block, long end) {
    float totals[MOST_AT_ONCE][BLOCK];
    for (; block < end; block++) {
        for (long r = 0; r < rows; r += PAIR_ROWS)
            if (rows - r == 1) sums_dense_bf16(job, row + r, block, totals + r, 1);
            else sums_dense_bf16(job, row + r, block, totals + r, PAIR_ROWS);
        finish_dense(job, row, rows, block, totals);
    }
}

#else
INTERNAL void blocks_f32_avx2(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
INTERNAL void blocks_bf16_avx2(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
#endif

INTERNAL int best_dense_isa(long kind) {
    if (kind == BFLOAT16 && has_amx()) return BY_AMX;
    if (kind == FLOAT32 ? has_avx512() : has_native_bfloat16()) return BY_AVX512;
    return has_avx2() ? BY_AVX2 : NO_ISA;
}

static int by_avx2(const Weight *weight) { return weight->kind <= BFLOAT16 && dense_isa[weight->kind] == BY_AVX2; }
INTERNAL int widens(const Weight *weight) { return by_avx2(weight) && in_bfloat16(weight); }

typedef struct {
    const Product *from;
    float *rows;
} Wider;

CLONES static void widen_numbers(const bfloat16 *x, float *y, long count) {
#pragma omp simd
    for (long i = 0; i < count; i++) y[i] = to_float_bf16(x[i]);
}

static void wider_piece(const void *work, long index) {
    const Wider *job = work;
    const long n = job->from->weight->inputs, first = index * SOME_ROWS, left = job->from->rows - first;
    widen_numbers((const bfloat16 *)job->from->x + first * n, job->rows + first * n, (left < SOME_ROWS ? left : SOME_ROWS) * n);
}

INTERNAL void product_dense(const Product *job) {
    if (!job->rows) return;
    Product widened = *job;
    if (widens(job->weight)) {
        Wider wider = {job, row_scratch(job->rows * job->weight->inputs * sizeof(float))};
        share(wider_piece, &wider, ceiling(job->rows, SOME_ROWS));
        widened.x = wider.rows;
    }
    share_product(&widened);
}
