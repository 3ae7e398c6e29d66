/* Rows of x to int8: see quantized_groups.h. */

#include "../base/cpu_kernels_common.h"
#include "quantize_activations.h"

/* rintf and not the trick with a large number: a multiplication that melts into an addition would round otherwise. */
INLINE void quantize_chunk(const float *x, const Grouping *g, Chunk *chunk, int8_t *y) {
    float peak = 0, nonfinite = 0; /* nonfinite is NaN for a chunk with NaN or infinity, and so is all that comes of it */
    int32_t sum = 0;
#pragma omp simd reduction(max : peak) reduction(+ : nonfinite)
    for (long i = 0; i < g->chunk; i++) {
        float size = fabsf(x[i]);
        peak = size > peak ? size : peak;
        nonfinite += size * 0.0f;
    }
    const float inverse = peak > 1e-30f ? BYTE_SIZE / peak : 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < g->chunk; i++) {
        const int32_t whole = (int32_t)rintf(x[i] * inverse);
        y[i] = (int8_t)whole;
        sum += (int8_t)whole;
    }
    end_chunk(g, chunk, peak / BYTE_SIZE + nonfinite, sum);
}

#define QUANTIZE(type, suffix) \
    CLONES static void quantize_chunks_##suffix(const type *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { \
        float part[MOST_CHUNK]; \
        for (long at = 0; at < n; at += g->chunk, chunks += rows, y += rows * MOST_CHUNK) { \
            const long count = n - at < g->chunk ? n - at : g->chunk; \
            if (g->order) \
                for (long i = 0; i < count; i++) part[i] = to_float_##suffix(x[g->order[at + i]]); \
            else \
                _Pragma("omp simd") for (long i = 0; i < count; i++) part[i] = to_float_##suffix(x[at + i]); \
            for (long i = count; i < g->chunk; i++) part[i] = 0; \
            quantize_chunk(part, g, chunks, y); \
        } \
    }
QUANTIZE(float, f32)
QUANTIZE(bfloat16, bf16)
#undef QUANTIZE

INTERNAL void quantize_chunks_piece(const void *work, long index) {
    const ChunkQuantization *job = work;
    const Product *from = job->from;
    const Grouping *g = grouping(from);
    const long n = from->weight->inputs, first = index * SOME_ROWS;
    const long end = first + SOME_ROWS < from->rows ? first + SOME_ROWS : from->rows, avx512 = int4_isa == VNNI_INT4 && !g->order;
    for (long row = first; row < end; row++) {
        Chunk *chunks = job->chunks + row;
        int8_t *wholes = job->wholes + row * MOST_CHUNK;
        if (in_bfloat16(from->weight)) (avx512 ? quantize_chunks_avx512_bf16 : quantize_chunks_bf16)((const bfloat16 *)from->x + row * n, n, g, chunks, wholes, from->rows);
        else (avx512 ? quantize_chunks_avx512_f32 : quantize_chunks_f32)((const float *)from->x + row * n, n, g, chunks, wholes, from->rows);
    }
}
