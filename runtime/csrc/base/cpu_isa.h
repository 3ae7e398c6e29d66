/* Instruction sets: what functions are compiled for, and what this CPU has.

   A function whose head has one of these names is compiled for it, and called where the CPU has it. */
#ifndef SGL_BASE_CPU_ISA_H
#define SGL_BASE_CPU_ISA_H

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define AVX512_F32 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX512_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define AVX512_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))
#define AVX512_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16,avx512vbmi")))

static inline int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static inline int has_avx512(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"); }
static inline int has_native_bfloat16(void) { return __builtin_cpu_supports("avx512bf16") && has_avx512(); }
static inline int has_vnni(void) { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
static inline int has_vbmi(void) { return __builtin_cpu_supports("avx512vbmi") && has_avx512(); }
static inline int has_float8_pairs(void) { return has_vnni() && has_native_bfloat16() && __builtin_cpu_supports("avx512vbmi"); }
#else
static inline int has_avx2(void) { return 0; }
static inline int has_avx512(void) { return 0; }
static inline int has_native_bfloat16(void) { return 0; }
static inline int has_vnni(void) { return 0; }
static inline int has_vbmi(void) { return 0; }
static inline int has_float8_pairs(void) { return 0; }
#endif

#endif
