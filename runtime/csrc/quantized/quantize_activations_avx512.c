/* Rows of x to int8 as in quantize_activations.c by AVX-512, to the same bits: a chunk is up to four registers. */

#include "../base/avx512.h"
#include "../base/cpu_isa.h"
#include "quantize_activations.h"

#if defined(__x86_64__)
AVX512_F32 INLINE __m512 load_lanes_f32(const float *x, long left) { return _mm512_maskz_loadu_ps(lanes_left(left), x); }

AVX512_F32 INLINE __m512 load_lanes_bf16(const bfloat16 *x, long left) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes_left(left), x)), 16));
}

/* x: `count` registers of LANES numbers. */
AVX512_F32 INLINE void quantize_lanes(const __m512 *x, const long count, const Grouping *g, Chunk *chunk, int8_t *y) {
    __m512 peaks = _mm512_setzero_ps(), nonfinite = _mm512_setzero_ps();
    __m512i sums = _mm512_setzero_si512();
    for (long v = 0; v < count; v++) {
        const __m512 size = _mm512_abs_ps(x[v]);
        peaks = _mm512_max_ps(size, peaks); /* of a NaN it takes the other */
        nonfinite = _mm512_fmadd_ps(size, _mm512_setzero_ps(), nonfinite);
    }
    const float peak = _mm512_reduce_max_ps(peaks), inverse = peak > 1e-30f ? BYTE_SIZE / peak : 0.0f;
    for (long v = 0; v < count; v++) {
        const __m512i wholes = _mm512_cvtps_epi32(_mm512_mul_ps(x[v], _mm512_set1_ps(inverse)));
        _mm_storeu_si128((void *)(y + v * LANES), _mm512_cvtepi32_epi8(wholes));
        sums = _mm512_add_epi32(sums, wholes);
    }
    end_chunk(g, chunk, peak / BYTE_SIZE + _mm512_reduce_add_ps(nonfinite), _mm512_reduce_add_epi32(sums));
}

#define QUANTIZE(type, suffix) \
    AVX512_F32 INTERNAL void quantize_chunks_avx512_##suffix(const type *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { \
        __m512 part[MOST_CHUNK / LANES]; \
        const long count = g->chunk / LANES; \
        for (long at = 0; at < n; at += g->chunk, chunks += rows, y += rows * MOST_CHUNK) { \
            for (long v = 0; v < count; v++) { \
                const long from = at + v * LANES; \
                part[v] = from < n ? load_lanes_##suffix(x + from, n - from) : _mm512_setzero_ps(); \
            } \
            if (count == MOST_CHUNK / LANES) quantize_lanes(part, MOST_CHUNK / LANES, g, chunks, y); \
            else quantize_lanes(part, count, g, chunks, y); \
        } \
    }
QUANTIZE(float, f32)
QUANTIZE(bfloat16, bf16)
#undef QUANTIZE
#else
INTERNAL void quantize_chunks_avx512_f32(const float *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { (void)x, (void)n, (void)g, (void)chunks, (void)y, (void)rows; }
INTERNAL void quantize_chunks_avx512_bf16(const bfloat16 *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { (void)x, (void)n, (void)g, (void)chunks, (void)y, (void)rows; }
#endif
