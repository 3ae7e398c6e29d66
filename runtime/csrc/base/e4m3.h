/* Numbers of 8 bits (e4m3: sign, 4 bits of exponent, 3 of mantissa, largest 448, no infinity), as keys and values may be kept.
   Every instruction set returns the same bits: all of them are numbers of bfloat16 too. */
#ifndef SGL_BASE_E4M3_H
#define SGL_BASE_E4M3_H

#include "cpu_kernels_common.h"

enum { E4M3_NAN = 0x7f, E4M3_LARGEST = 448 };

INLINE float to_float_e4m3(uint8_t x) {
    const uint32_t size = x & 0x7f, moved = (size << 20) + (120u << 23), sign = (uint32_t)(x & 0x80) << 24;
    float normal, y;
    memcpy(&normal, &moved, 4);
    y = size < 8 ? (float)(int32_t)size * 0x1p-9f : normal;
    uint32_t bits;
    memcpy(&bits, &y, 4);
    bits = (size == E4M3_NAN ? 0x7fc00000 : bits) | sign;
    memcpy(&y, &bits, 4);
    return y;
}

INLINE uint8_t from_float_e4m3(float x) { /* to nearest, ties to even; what is too large the largest; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 24 & 0x80, given = bits & 0x7fffffff, largest = 0x43e00000;
    const uint32_t size = given < largest ? given : largest;
    const uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    float small;
    memcpy(&small, &size, 4);
    small += 16384.0f; /* whose last bit is the smallest of these numbers */
    uint32_t few;
    memcpy(&few, &small, 4);
    const uint32_t code = size < 121u << 23 ? few - 0x46800000 : normal;
    return (uint8_t)((given > 0x7f800000 ? E4M3_NAN : code) | sign);
}

INLINE bfloat16 to_bfloat16_e4m3(uint8_t x) {
    const float y = to_float_e4m3(x);
    uint32_t bits;
    memcpy(&bits, &y, 4);
    return (bfloat16)(bits >> 16);
}

#endif
