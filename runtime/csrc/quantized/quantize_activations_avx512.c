/* Rows of x to int8 as in quantize_activations.c by AVX-512, to the same bits: a chunk is up to four registers. */

#include "../base/avx512.h"
#include "../base/isa.h"
#include "quantize_activations.h"

#if defined(__x86_64__)
WIDE_f32 INLINE __m512 narrowed_lanes_f32(const float *x, long left) { return _mm512_maskz_loadu_ps(lanes_left(left), x); }

WIDE_f32 INLINE __m512 narrowed_lanes_bf16(const bfloat16 *x, long left) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes_left(left), x)), 16));
}

/* x: `count` registers of LANES numbers. */
WIDE_f32 INLINE void narrow_lanes(const __m512 *x, const long count, const Grouping *g, Chunk *chunk, int8_t *y) {
    __m512 peaks = _mm512_setzero_ps(), strange = _mm512_setzero_ps();
    __m512i sums = _mm512_setzero_si512();
    for (long v = 0; v < count; v++) {
        const __m512 size = _mm512_abs_ps(x[v]);
        peaks = _mm512_max_ps(size, peaks); /* of a NaN it takes the other */
        strange = _mm512_fmadd_ps(size, _mm512_setzero_ps(), strange);
    }
    const float peak = _mm512_reduce_max_ps(peaks), inverse = peak > 1e-30f ? BYTE_SIZE / peak : 0.0f;
    for (long v = 0; v < count; v++) {
        const __m512i wholes = _mm512_cvtps_epi32(_mm512_mul_ps(x[v], _mm512_set1_ps(inverse)));
        _mm_storeu_si128((void *)(y + v * LANES), _mm512_cvtepi32_epi8(wholes));
        sums = _mm512_add_epi32(sums, wholes);
    }
    end_chunk(g, chunk, peak / BYTE_SIZE + _mm512_reduce_add_ps(strange), _mm512_reduce_add_epi32(sums));
}

#define NARROWED(type, suffix) \
    WIDE_f32 INTERNAL void narrow_widely_##suffix(const type *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { \
        __m512 part[MOST_CHUNK / LANES]; \
        const long count = g->chunk / LANES; \
        for (long at = 0; at < n; at += g->chunk, chunks += rows, y += rows * MOST_CHUNK) { \
            for (long v = 0; v < count; v++) { \
                const long from = at + v * LANES; \
                part[v] = from < n ? narrowed_lanes_##suffix(x + from, n - from) : _mm512_setzero_ps(); \
            } \
            if (count == MOST_CHUNK / LANES) narrow_lanes(part, MOST_CHUNK / LANES, g, chunks, y); \
            else narrow_lanes(part, count, g, chunks, y); \
        } \
    }
NARROWED(float, f32)
NARROWED(bfloat16, bf16)
#undef NARROWED
#else
INTERNAL void narrow_widely_f32(const float *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { (void)x, (void)n, (void)g, (void)chunks, (void)y, (void)rows; }
INTERNAL void narrow_widely_bf16(const bfloat16 *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { (void)x, (void)n, (void)g, (void)chunks, (void)y, (void)rows; }
#endif
