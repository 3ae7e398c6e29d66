/* What floats.c and float8_bf16.c share. */
#ifndef SGL_QUANTIZED_FLOATS_H
#define SGL_QUANTIZED_FLOATS_H

#include "grouping.h"

enum { FLOAT_ROWS = 6 }; /* whose sums the registers hold */

INLINE long even(long n) { return n + (n & 1); }

INLINE const float *wide_row(const Product *job, long row) { return (const float *)job->x + row * even(job->weight->inputs); }

#if defined(__x86_64__)
INTERNAL void blocks_float8_pairs(const Product *job, long row, long rows, long block, long end);
#endif

#endif
