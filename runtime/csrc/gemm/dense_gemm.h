/* Products of float32 and bfloat16 weights, by the best instructions of this CPU: the files dense_*.c. */
#ifndef SGL_GEMM_DENSE_GEMM_H
#define SGL_GEMM_DENSE_GEMM_H

#include "gemm.h"

enum { NO_ISA, BY_AVX2, BY_AVX512, BY_AMX, DENSE_ISAS };

INTERNAL_DATA int dense_isa[2]; /* the instruction sets in use of FLOAT32, BFLOAT16: set when the module is made; tests take others */

INTERNAL int has_amx(void);
INTERNAL int best_dense_isa(long kind); /* the best one that this CPU has */

INTERNAL void blocks_f32(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_bf16(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_f32_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_bf16_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_amx(const Product *job, long row, long rows, long block, long end);

INTERNAL int widens(const Weight *weight); /* whether x becomes float32 before */
INTERNAL void product_dense(const Product *job);

#endif
