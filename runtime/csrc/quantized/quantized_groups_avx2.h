/* Scales and shifts of eight outputs, by AVX2. */
#ifndef SGL_QUANTIZED_QUANTIZED_GROUPS_AVX2_H
#define SGL_QUANTIZED_QUANTIZED_GROUPS_AVX2_H

#include "../base/cpu_isa.h"
#include "quantized_groups.h"

enum { EIGHT = 8, ROWS_AVX2 = 4 }; /* outputs of a register; rows whose sums the registers hold */

#if defined(__x86_64__)
AVX2 INLINE __m256 double_quantized_avx2(const Grouping *g, const char *inner, long at) {
    const __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(inner + at))));
    return _mm256_mul_ps(first, _mm256_cvtph_ps(_mm_loadu_si128((const void *)outer_at(g, inner, at))));
}

AVX2 INLINE __m256 scales_avx2(const Grouping *g, const char *block, long at) {
    if (g->scales == DOUBLE_QUANTIZED_SCALES) return double_quantized_avx2(g, block, at);
    if (g->scales == HALF_SCALES) return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(block + 2 * at)));
    return _mm256_loadu_ps((const float *)block + at);
}

AVX2 INLINE __m256 shifts_avx2(const Grouping *g, const char *block, long at, __m256 scale) {
    const char *shifts = shifts_of(g, block);
    if (g->shifts == DOUBLE_QUANTIZED_SHIFTS) return double_quantized_avx2(g, shifts, at);
    if (g->shifts == SHIFTS) return _mm256_loadu_ps((const float *)shifts + at);
    if (g->shifts == HALF_SHIFTS) return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(shifts + 2 * at)));
    __m256 zero = g->shifts == ZERO_BYTES ? _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(shifts + at))))
                                          : _mm256_cvtph_ps(_mm_loadu_si128((const void *)(shifts + 2 * at)));
    return _mm256_mul_ps(scale, _mm256_sub_ps(_mm256_setzero_ps(), zero));
}
#endif

#endif
