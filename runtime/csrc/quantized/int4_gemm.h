/* The parts of int4_gemm.c: blocks of codes in four bits, of these with a table, and of bytes, for each instruction set. */
#ifndef SGL_QUANTIZED_INT4_GEMM_H
#define SGL_QUANTIZED_INT4_GEMM_H

#include "quantized_groups.h"

#if defined(__x86_64__)
INTERNAL void blocks_halves_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_table_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_bytes_avx2(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_halves_vnni(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_table_vnni(const Product *job, long row, long rows, long block, long end);
INTERNAL void blocks_bytes_vnni(const Product *job, long row, long rows, long block, long end);
#endif

#endif
