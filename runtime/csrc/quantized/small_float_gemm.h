/* What small_float_gemm.c and float8_bf16_gemm.c share. */
#ifndef SGL_QUANTIZED_SMALL_FLOAT_GEMM_H
#define SGL_QUANTIZED_SMALL_FLOAT_GEMM_H

#include "quantized_groups.h"

enum { FLOAT_ROWS = 6 }; /* whose sums the registers hold */

INLINE long even(long n) { return n + (n & 1); }

INLINE const float *wide_row(const Product *job, long row) { return (const float *)job->x + row * even(job->weight->inputs); }

#if defined(__x86_64__)
INTERNAL void blocks_float8_pairs(const Product *job, long row, long rows, long block, long end);
#endif

#endif
