/* Numbers of 8 bits to float32 and bfloat16: see dequantize_e4m3.h. */

#include "../base/cpu_isa.h"
#include "dequantize_e4m3.h"

#define RESTORED(type, suffix, converted) \
    CLONES static void restore_##suffix##_generic(const Restore *job) { \
        for (long j = 0; j < job->count; j++) { \
            const uint8_t *row = job->from + job->slots[j] * job->token; \
            type *to = (type *)job->room + j * job->dim; \
            _Pragma("omp simd") for (long i = 0; i < job->dim; i++) to[i] = converted(row[i]); \
        } \
    }
RESTORED(float, f32, to_float_e4m3)
RESTORED(bfloat16, bf16, to_bfloat16_e4m3)
#undef RESTORED

#if defined(__x86_64__)
static uint8_t e4m3_high[128] __attribute__((aligned(64))), e4m3_low[128] __attribute__((aligned(64))); /* of bfloat16, without signs */

INTERNAL void fill_e4m3(void) {
    for (int code = 0; code < 128; code++) {
        const bfloat16 y = to_bfloat16_e4m3((uint8_t)code);
        e4m3_high[code] = (uint8_t)(y >> 8), e4m3_low[code] = (uint8_t)y;
    }
}

/* Up to 64 numbers at a time: both bytes of their bfloat16 are looked up. They are put in order before, for the unpacking that follows. */
AVX512_VBMI INLINE void halves_of_e4m3(const uint8_t *from, long count, __m512i order, __m512i *first, __m512i *second) {
    const __mmask64 there = count >= 64 ? ~0ull : (1ull << count) - 1;
    const __m512i x = _mm512_permutexvar_epi32(order, _mm512_maskz_loadu_epi8(there, from));
    const __m512i size = _mm512_permutex2var_epi8(_mm512_load_si512(e4m3_high), x, _mm512_load_si512(e4m3_high + 64));
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(e4m3_low), x, _mm512_load_si512(e4m3_low + 64));
    const __m512i high = _mm512_ternarylogic_epi32(size, x, _mm512_set1_epi8((char)0x80), 0xf8); /* a | (b & c) */
    *first = _mm512_unpacklo_epi8(low, high), *second = _mm512_unpackhi_epi8(low, high);
}

AVX512_VBMI static void restore_bf16_avx512(const Restore *job) {
    const __m512i order = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    for (long j = 0; j < job->count; j++) {
        const uint8_t *row = job->from + job->slots[j] * job->token;
        bfloat16 *to = (bfloat16 *)job->room + j * job->dim;
        for (long i = 0; i < job->dim; i += 64) {
            __m512i halves[2];
            halves_of_e4m3(row + i, job->dim - i, order, &halves[0], &halves[1]);
            for (long k = 0; k < 2 && i + 32 * k < job->dim; k++) _mm512_storeu_si512(to + i + 32 * k, halves[k]);
        }
    }
}

AVX512_VBMI static void restore_f32_avx512(const Restore *job) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), zero = _mm512_setzero_si512();
    for (long j = 0; j < job->count; j++) {
        const uint8_t *row = job->from + job->slots[j] * job->token;
        float *to = (float *)job->room + j * job->dim;
        for (long i = 0; i < job->dim; i += 64) {
            __m512i halves[2];
            halves_of_e4m3(row + i, job->dim - i, order, &halves[0], &halves[1]);
            for (long k = 0; k < 2 && i + 32 * k < job->dim; k++) {
                _mm512_storeu_si512(to + i + 32 * k, _mm512_unpacklo_epi16(zero, halves[k]));
                _mm512_storeu_si512(to + i + 32 * k + 16, _mm512_unpackhi_epi16(zero, halves[k]));
            }
        }
    }
}
/* As float16 they are 1 / 256 of themselves: shifts, and NaN put in its place. */
__attribute__((target("avx2,f16c,fma"))) static void restore_f32_f16c(const Restore *job) {
    const __m256i sizes = _mm256_set1_epi16(0x7f), signs = _mm256_set1_epi16(0x80), nonfinite = _mm256_set1_epi16(0x7e00);
    const __m256 whole = _mm256_set1_ps(256.0f);
    for (long j = 0; j < job->count; j++) {
        const uint8_t *row = job->from + job->slots[j] * job->token;
        float *to = (float *)job->room + j * job->dim;
        long i = 0;
        for (; i + 16 <= job->dim; i += 16) {
            const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(row + i)));
            const __m256i size = _mm256_and_si256(x, sizes), nan = _mm256_and_si256(_mm256_cmpeq_epi16(size, sizes), nonfinite);
            const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, signs), 8);
            const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(size, 7), nan), sign);
            _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), whole));
            _mm256_storeu_ps(to + i + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), whole));
        }
        for (; i < job->dim; i++) to[i] = to_float_e4m3(row[i]);
    }
}

INTERNAL int best_e4m3_isa(void) { return has_vbmi() ? 2 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
#else
INTERNAL void fill_e4m3(void) {}
INTERNAL int best_e4m3_isa(void) { return 0; }
static void restore_bf16_avx512(const Restore *job) { restore_bf16_generic(job); }
static void restore_f32_avx512(const Restore *job) { restore_f32_generic(job); }
static void restore_f32_f16c(const Restore *job) { restore_f32_generic(job); }
#endif

INTERNAL int e4m3_isa; /* 0: generic, 1: float32 by AVX2 and F16C, 2: rows of whole chunks by AVX512_VBMI */

INTERNAL void restore_f32(const Restore *job) {
    if (e4m3_isa == 2 && job->dim % 32 == 0) restore_f32_avx512(job);
    else if (e4m3_isa) restore_f32_f16c(job);
    else restore_f32_generic(job);
}

INTERNAL void restore_bf16(const Restore *job) {
    if (e4m3_isa == 2 && job->dim % 32 == 0) restore_bf16_avx512(job);
    else restore_bf16_generic(job);
}
