/* y [rows, outputs] = x w^T + bias + residual, the weight read once for all rows.

   A weight is stored in blocks of 32 outputs, so that a register holds sums of 16 and nothing is added across registers:
       float32   [outputs / 32] [inputs]     [32]       by AVX-512, or as dense_gemm_avx2.c
       bfloat16  [outputs / 32] [inputs / 2] [32] [2]   pairs of inputs: by AVX512_BF16, which multiplies them exactly, as dense_gemm_amx.c, or as dense_gemm_avx2.c
       int8      likewise: quantized/int8_gemm.c
       groups    of whole numbers in 4 and 8 bits: quantized/int4_gemm.c; of small floats: quantized/small_float_gemm.c
   The last block is filled up with zeros. A sum runs over the inputs in order, whatever rows it is computed with. */
#ifndef SGL_GEMM_GEMM_H
#define SGL_GEMM_GEMM_H

#include "../base/cpu_kernels_common.h"
#include "../base/thread_pool.h"

enum { /* from the third on: the weights, and what x is */
    FLOAT32, BFLOAT16, INT8_FLOAT32, INT8_BFLOAT16, INT4_FLOAT32, INT4_BFLOAT16, FLOATS_FLOAT32, FLOATS_BFLOAT16, STACK_FLOAT32, STACK_BFLOAT16
};
enum { BLOCK = 32, MOST_AT_ONCE = 12, PIECE_BLOCKS = 2, MOST_PIECE = 8, PIECE_ROWS = 96 }; /* rows whose sums the registers hold; of a piece */
enum { FAR = 8192 }; /* bytes of a weight that are fetched ahead */
enum { FETCHED = 64, FETCHED_LINES = 16 }; /* pieces of memory that are fetched while a block is computed; lines of 64 bytes of each */

typedef struct { /* as Python lays it out, 8 bytes a field; bias is 0 or of the activations' type */
    const void *data, *bias, *scale; /* scale: of int8, float32 [outputs]; of groups, a Grouping. data: of a stack, its Weights */
    int64_t kind, outputs, inputs;
} Weight;

typedef struct { /* what is added to a product by those who compute it: `units` of work come before its pieces, then each piece is finished */
    void (*unit)(const void *more, long index);
    long (*fetch)(const void *more, long first, long end, const char **pieces);       /* what finishing these outputs will read, FETCHED pieces at most */
    void (*finish)(const void *more, long row, long rows, long first, long end);      /* of these rows the outputs from `first` to `end` */
    const void *more;
    long units;
    atomic_long *done; /* units so far */
} Added;

typedef struct {
    const Weight *weight;
    const void *x, *residual;
    void *y;
    long rows;
    int wide;   /* y is float32 [rows, outputs], of numbers rounded to the activations' type */
    long piece; /* blocks of a piece */
    long width; /* numbers of a row of y, and of residual: of a stack's weights, those of all */
    const Added *added; /* or 0 */
    long before;        /* outputs of a stack before this weight's */
    const char *const *fetched; /* pieces of memory to fetch, line by line, while sums run over the inputs */
    long lines;                 /* of them all */
} Product;

typedef void (*Blocks)(const Product *job, long row, long rows, long block, long end);

INLINE int in_bfloat16(const Weight *weight) { return weight->kind & 1; }

/* A switch whose every case calls with a constant number of rows, so that the sums stay in registers. */
#define EACH_ROWS(rows, call) \
    switch (rows) { \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 4: call(4); break; \
        case 5: call(5); break; \
        case 6: call(6); break; \
    }

INTERNAL void product(const Product *given);                   /* of any kind, shared between the threads */
INTERNAL void products(Product *jobs, long count, long *first); /* of several weights; first: room for count + 1 */
INTERNAL void product_piece(const void *work, long index);
INTERNAL void share_product(const Product *given);             /* x is what the blocks of this kind read */

#endif
