/* The end of a sum: bias and residual are added, and the result is rounded to the type of y. */
#ifndef SGL_GEMM_GEMM_EPILOGUE_H
#define SGL_GEMM_GEMM_EPILOGUE_H

#include "gemm.h"

#define ADDED(type, suffix, from) \
    _Pragma("omp simd") for (long o = 0; o < count; o++) sums[o] += to_float_##suffix(((const type *)(from))[o]);

/* y from the finished products of a row in one block: bias and residual are added in float32. wide: x is float32. */
INLINE void end_row(const Product *job, const int wide, long row, long output, long count, float *sums) {
    const Weight *weight = job->weight;
    const long place = row * job->width + output;
    if (weight->bias && wide) { ADDED(float, f32, (const float *)weight->bias + output) }
    if (weight->bias && !wide) { ADDED(bfloat16, bf16, (const bfloat16 *)weight->bias + output) }
    if (job->residual && wide) { ADDED(float, f32, (const float *)job->residual + place) }
    if (job->residual && !wide) { ADDED(bfloat16, bf16, (const bfloat16 *)job->residual + place) }
    if (wide)
        memcpy((float *)job->y + place, sums, count * sizeof(float));
    else if (job->wide)
#pragma omp simd
        for (long o = 0; o < count; o++) ((float *)job->y)[place + o] = to_float_bf16(from_float_bf16(sums[o]));
    else
#pragma omp simd
        for (long o = 0; o < count; o++) ((bfloat16 *)job->y)[place + o] = from_float_bf16(sums[o]);
}
#undef ADDED

#endif
