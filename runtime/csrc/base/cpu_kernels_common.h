/* What every file of the CPU kernels needs: the kernels run the decode path of the decoder on a CPU, where rows are few and
   memory bandwidth and call overhead are all that counts.

   Every function works row by row in float32 and returns the same bits for a row whatever else is in the batch.
   Pointers arrive as integers, checked and kept alive by Python. `kind` is 0 for float32, 1 for bfloat16. */
#ifndef SGL_BASE_CPU_KERNELS_COMMON_H
#define SGL_BASE_CPU_KERNELS_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* INTERNAL: a function or variable that a header declares and one file defines. The build compiles all files as one translation
   unit (cpu_kernels_unity.c), where it is static, so that the compiler inlines it. Compiled by itself, a file exports it to the others.
   INTERNAL_DATA: the declaration of such a variable. */
#ifdef SGL_ALL
#define INTERNAL static
#define INTERNAL_DATA static
#else
#define INTERNAL __attribute__((visibility("hidden")))
#define INTERNAL_DATA extern INTERNAL
#endif

/* CLONES: the compiler makes a variant for AVX-512, one for AVX2 and one for any CPU, and the loader takes the best. */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) /* GCC 10 and 11 know single features only */
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

enum { MOST_DIM = 512, KEYS = 64, QUERIES = 8, AHEAD = 16, FEW = 4, SOME_ROWS = 4, LANES = 16, SOME_KEYS = 16, MOST_SEEN = 64 };

typedef uint16_t bfloat16;

INLINE float to_float_f32(float x) { return x; }
INLINE float from_float_f32(float x) { return x; }

INLINE float to_float_bf16(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

INLINE bfloat16 from_float_bf16(float x) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bfloat16)(x != x ? 0x7fc0 : rounded);
}

INLINE void prefetch(const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)from + i);
}

INLINE long ceiling(long a, long b) { return (a + b - 1) / b; }

#endif
