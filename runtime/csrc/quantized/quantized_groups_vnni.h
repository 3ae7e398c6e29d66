/* Scales and shifts of 16 outputs, by AVX-512. */
#ifndef SGL_QUANTIZED_QUANTIZED_GROUPS_VNNI_H
#define SGL_QUANTIZED_QUANTIZED_GROUPS_VNNI_H

#include "../base/cpu_isa.h"
#include "quantized_groups.h"

#if defined(__x86_64__)
AVX512_VNNI INLINE __m512 double_quantized_vnni(const Grouping *g, const char *inner, long at) {
    const __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(inner + at))));
    return _mm512_mul_ps(first, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)outer_at(g, inner, at))));
}

AVX512_VNNI INLINE __m512 scales_vnni(const Grouping *g, const char *block, long at) {
    if (g->scales == DOUBLE_QUANTIZED_SCALES) return double_quantized_vnni(g, block, at);
    if (g->scales == HALF_SCALES) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(block + 2 * at)));
    return _mm512_loadu_ps((const float *)block + at);
}

AVX512_VNNI INLINE __m512 shifts_vnni(const Grouping *g, const char *block, long at, __m512 scale) {
    const char *shifts = shifts_of(g, block);
    if (g->shifts == DOUBLE_QUANTIZED_SHIFTS) return double_quantized_vnni(g, shifts, at);
    if (g->shifts == SHIFTS) return _mm512_loadu_ps((const float *)shifts + at);
    if (g->shifts == HALF_SHIFTS) return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(shifts + 2 * at)));
    __m512 zero = g->shifts == ZERO_BYTES ? _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(shifts + at))))
                                          : _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(shifts + 2 * at)));
    return _mm512_mul_ps(scale, _mm512_sub_ps(_mm512_setzero_ps(), zero));
}
#endif

#endif
