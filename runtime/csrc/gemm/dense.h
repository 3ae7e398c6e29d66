/* Products of float32 and bfloat16 weights, by the best instructions of this CPU: the files dense_*.c. */
#ifndef SGL_GEMM_DENSE_H
#define SGL_GEMM_DENSE_H

#include "product.h"

enum { NO_WAY, BY_AVX2, BY_AVX512, BY_AMX, DENSE_WAYS };

INTERNAL_DATA int dense_way[2]; /* of FLOAT32, BFLOAT16; set when the module is made; tests take others */

INTERNAL int has_amx(void);
INTERNAL int dense_ways(long kind); /* the best way here */

INTERNAL void blocks_f32(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_bf16(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_f32_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_bf16_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_amx(const Product *job, long row, long rows, long block, long end);

INTERNAL int widens(const Weight *weight); /* whether x becomes float32 before */
INTERNAL void product_dense(const Product *job);

#endif
