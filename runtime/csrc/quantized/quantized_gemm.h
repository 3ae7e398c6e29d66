/* Products with quantized weights, by kind. blocks_*: see Blocks; product_*: the whole product, whose rows of x are quantized or widened before. */
#ifndef SGL_QUANTIZED_QUANTIZED_GEMM_H
#define SGL_QUANTIZED_QUANTIZED_GEMM_H

#include "../gemm/gemm.h"

INTERNAL void blocks_int8(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_int4(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_float(const Product *job, long row, long rows, long block, long end);
INTERNAL void product_int8(const Product *job);
INTERNAL void product_int4(const Product *job);
INTERNAL void product_float(const Product *job);

INTERNAL int best_int4_isa(void); /* the best one that this CPU has */
INTERNAL_DATA int use_float8_pairs; /* whether float8_bf16_gemm.c is used; tests take others with int4_isa */
INTERNAL void fill_float8(void);

#endif
