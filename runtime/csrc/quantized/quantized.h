/* Products with quantized weights, by kind. blocks_*: see Blocks; product_*: the whole product, whose rows of x are quantized or widened before. */
#ifndef SGL_QUANTIZED_QUANTIZED_H
#define SGL_QUANTIZED_QUANTIZED_H

#include "../gemm/product.h"

INTERNAL void blocks_int8(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_int4(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_float(const Product *job, long row, long rows, long block, long end);
INTERNAL void product_int8(const Product *job);
INTERNAL void product_int4(const Product *job);
INTERNAL void product_float(const Product *job);

INTERNAL int int4_ways(void); /* the best way here */
INTERNAL_DATA int float8_way; /* whether there is the way of pairs; tests take others with int4_way */
INTERNAL void fill_float8(void);

#endif
