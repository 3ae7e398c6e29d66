/* Rows of x to int8, chunk by chunk. */
#ifndef SGL_QUANTIZED_QUANTIZE_ACTIVATIONS_H
#define SGL_QUANTIZED_QUANTIZE_ACTIVATIONS_H

#include "../base/cpu_kernels_common.h"
#include "quantized_groups.h"

INLINE void end_chunk(const Grouping *g, Chunk *chunk, float scale, int32_t sum) {
    chunk->scale = scale, chunk->sum = scale * sum;
    chunk->start = -(int32_t)g->centre * sum, chunk->above = (int32_t)g->above * sum;
}

/* A row of x; chunks and y are those of its first chunk, and `rows` apart. */
INTERNAL void quantize_chunks_avx512_f32(const float *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows);
INTERNAL void quantize_chunks_avx512_bf16(const bfloat16 *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows);

typedef struct {
    const Product *from;
    Chunk *chunks;
    int8_t *wholes;
} ChunkQuantization;

INTERNAL void quantize_chunks_piece(const void *work, long index); /* SOME_ROWS rows of a ChunkQuantization */

#endif
