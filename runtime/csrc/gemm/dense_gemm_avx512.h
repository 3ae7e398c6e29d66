/* Sums of bfloat16 by AVX512_BF16, whose instruction multiplies 16 pairs exactly and adds them in float32. */
#ifndef SGL_GEMM_DENSE_GEMM_AVX512_H
#define SGL_GEMM_DENSE_GEMM_AVX512_H

#include "../base/avx512.h"
#include "gemm.h"

#if defined(__x86_64__)
AVX512_BF16 INLINE __m512 widened(const bfloat16 *from, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

AVX512_BF16 INLINE void finish_bf16(const Product *job, long row, long output, __m512 sum) {
    const long left = job->weight->outputs - output, place = row * job->width + output;
    if (left <= 0) return;
    const __mmask16 mask = lanes_left(left);
    if (job->weight->bias) sum = _mm512_add_ps(sum, widened((const bfloat16 *)job->weight->bias + output, mask));
    if (job->residual) sum = _mm512_add_ps(sum, widened((const bfloat16 *)job->residual + place, mask));
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sum);
    if (job->wide)
        _mm512_mask_storeu_ps((float *)job->y + place, mask,
                              _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
    else
        _mm256_mask_storeu_epi16((bfloat16 *)job->y + place, mask, rounded);
}

/* sums += weights * inputs. Written out because GCC copies the intrinsic's sums around, and runs out of registers. */
AVX512_BF16 INLINE void add_products(__m512 *sums, __m512bh weights, __m512bh inputs) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sums) : "v"(weights), "v"(inputs));
}
#endif

#endif
