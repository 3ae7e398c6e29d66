/* Vectors of float32 by AVX-512: sums across registers, the exponential, and chunks of both element types. */
#ifndef SGL_BASE_AVX512_H
#define SGL_BASE_AVX512_H

#include "vector_math.h"
#include "cpu_kernels_common.h"
#include "cpu_isa.h"

enum { CHUNK = 32 }; /* numbers of a head that are handled together, as two registers of float32 */

#if defined(__x86_64__)
/* The sums of each of 4 registers' quarters, side by side: halves are added to halves, pair by pair. */
AVX512_F32 INLINE __m512 add_quarters(const __m512 *s) {
    __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1]));
    __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3]));
    __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}

/* The sum of each of 16 registers, in their order, from what add_quarters makes of fours. */
AVX512_F32 INLINE __m512 add_across(const __m512 *fours) {
    __m512 eights[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                                  _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88), _mm512_shuffle_f32x4(eights[0], eights[1], 0xdd));
}

AVX512_F32 INLINE __m512 exponential_lanes(__m512 x) { /* as `exponential`; NaN stays NaN */
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    __m512 turns = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(turns, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fmadd_ps(turns, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, turns);
}

AVX512_F32 INLINE __mmask16 lanes_left(long left) { return left >= 16 ? 0xffff : (1u << left) - 1; }

/* Of 16 places from j on, those from `from` up to `end`. */
AVX512_F32 INLINE __mmask16 lanes_between(long j, long from, long end) {
    return lanes_left(end - j) & (from > j ? 0xffff << (from - j) : 0xffff);
}

/* The scores `from` to `end` of a block become weights; `most` and `total` go on. Returns what earlier sums are to be multiplied with. */
AVX512_F32 INLINE float soften(float *score, long from, long end, float *most, float *total) {
    __m512 top = _mm512_set1_ps(*most), sum = _mm512_setzero_ps();
    const long start = from / LANES * LANES;
    for (long j = start; j < end; j += LANES) top = _mm512_mask_max_ps(top, lanes_between(j, from, end), top, _mm512_loadu_ps(score + j));
    const float highest = _mm512_reduce_max_ps(top), keep = exponential(*most - highest);
    for (long j = start; j < end; j += LANES) {
        __m512 weight = exponential_lanes(_mm512_sub_ps(_mm512_loadu_ps(score + j), _mm512_set1_ps(highest)));
        weight = _mm512_maskz_mov_ps(lanes_between(j, from, end), weight);
        _mm512_storeu_ps(score + j, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    *total = *total * keep + _mm512_reduce_add_ps(sum);
    *most = highest;
    return keep;
}

AVX512_F32 INLINE __m512 dot_chunk_f32(__m512 sum, const float *x, const float *y) {
    sum = _mm512_fmadd_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(y), sum);
    return _mm512_fmadd_ps(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(y + 16), sum);
}

AVX512_F32 INLINE void split_chunk_f32(const float *from, __m512 *a, __m512 *b) {
    *a = _mm512_loadu_ps(from), *b = _mm512_loadu_ps(from + 16);
}

AVX512_F32 INLINE void join_chunk_f32(float *to, __m512 a, __m512 b) {
    _mm512_storeu_ps(to, a), _mm512_storeu_ps(to + 16, b);
}

AVX512_BF16 INLINE __m512 dot_chunk_bf16(__m512 sum, const bfloat16 *x, const bfloat16 *y) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(_mm512_loadu_si512(x)), "m"(*(const __m512i_u *)y)); /* see add_products */
    return sum;
}

AVX512_BF16 INLINE void split_chunk_bf16(const bfloat16 *from, __m512 *even, __m512 *odd) {
    __m512i both = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
}

AVX512_BF16 INLINE void join_chunk_bf16(bfloat16 *to, __m512 even, __m512 odd) {
    __m512i a = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    __m512i b = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
    _mm512_storeu_si512(to, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}
#endif

#endif
