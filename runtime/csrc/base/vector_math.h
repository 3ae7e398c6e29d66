/* Functions of single numbers that the compiler turns into whole registers: exponential, tanh, erf and what is made of them. */
#ifndef SGL_BASE_VECTOR_MATH_H
#define SGL_BASE_VECTOR_MATH_H

#include "cpu_kernels_common.h"

enum { SILU, GELU, GELU_TANH, QUICK_GELU, RELU, RELU2 }; /* as in layers/cpu.py */

INLINE float exponential(float x) { /* relative error below 2e-7, for x <= 88; NaN stays NaN */
    x = x < -87.0f ? -87.0f : x;
    float turns = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23 rounds to a whole number */
    float whole = turns - 12582912.0f;
    float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &turns, 4);
    bits = (bits + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

INLINE float hyperbolic_tangent(float x) { /* relative error below 3e-7; NaN stays NaN */
    float size = fabsf(x), square = x * x;
    float small = -17.0f / 315 + square * (62.0f / 2835);
    small = 2.0f / 15 + square * small;
    small = -1.0f / 3 + square * small;
    small = x + x * square * small;
    float large = 1.0f - 2.0f / (exponential(2.0f * (size > 10.0f ? 10.0f : size)) + 1.0f);
    return size < 0.3f ? small : copysignf(large, x);
}

INLINE float error_function(float x) { /* relative error below 3e-7; NaN stays NaN. Polynomials fitted for least relative error */
    float size = fabsf(x), square = x * x, t = size > 4.0f ? 4.0f : size;
    float near = 7.889119e-5f; /* erf(x) / x - 1 below 1, of x^2 */
    near = near * square - 8.0208411e-4f;
    near = near * square + 5.1895352e-3f;
    near = near * square - 2.6854444e-2f;
    near = near * square + 1.1283600e-1f;
    near = near * square - 3.7612626e-1f;
    near = near * square + 1.2837917e-1f;
    float far = -2.1697639e-5f; /* log(1 - erf(x)) from 1 to 4 */
    far = far * t + 4.4147292e-4f;
    far = far * t - 4.2052860e-3f;
    far = far * t + 2.5210341e-2f;
    far = far * t - 1.0842210e-1f;
    far = far * t - 6.3321638e-1f;
    far = far * t - 1.1295803f;
    far = far * t + 1.8846778e-4f;
    return size < 1.0f ? x + x * near : copysignf(1.0f - exponential(far), x);
}

INLINE float sigmoid_of(float x, float sharpness) { /* x * sigmoid(sharpness * x) */
    float steep = sharpness * x, down = steep < -87.0f ? -87.0f : steep;
    return x / (1.0f + exponential(-down));
}

INLINE float activated(const int activation, float x) {
    switch (activation) {
        case SILU: return sigmoid_of(x, 1.0f);
        case GELU: return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
        case QUICK_GELU: return sigmoid_of(x, 1.702f);
        case RELU: return x < 0 ? 0 : x;
        default: return x < 0 ? 0 : x * x; /* RELU2 */
    }
}

/* A switch whose every case calls with a constant activation, so that its loops are whole registers. */
#define EACH_ACTIVATION(activation, call) \
    switch (activation) { \
        case SILU: call(SILU); break; \
        case GELU: call(GELU); break; \
        case GELU_TANH: call(GELU_TANH); break; \
        case QUICK_GELU: call(QUICK_GELU); break; \
        case RELU: call(RELU); break; \
        case RELU2: call(RELU2); break; \
    }

#endif
