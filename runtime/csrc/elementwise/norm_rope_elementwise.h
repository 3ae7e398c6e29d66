/* Norms, activations, rotations and sums of rows, and the cache that keys and values are stored in. */
#ifndef SGL_ELEMENTWISE_NORM_ROPE_ELEMENTWISE_H
#define SGL_ELEMENTWISE_NORM_ROPE_ELEMENTWISE_H

#include "../base/cpu_kernels_common.h"

enum { NO_NORM, RMS, LAYER_NORM };

typedef struct {
    const float *weight, *bias; /* bias: or 0 */
    int64_t kind;
    double eps;
} Norm;

/* Of both element types. What each does is said at its definition, in norm_rope_elementwise.inc. */
#define ELEMENTWISE(TYPE, suffix) \
    INTERNAL void norm_##suffix(const Norm *norm, const TYPE *x, long stride, TYPE *y, long to, long rows, long spans, long n); \
    INTERNAL void activate_##suffix(long activation, const TYPE *x, TYPE *y, long rows, long n); \
    INTERNAL void activate_and_mul_##suffix(long activation, const TYPE *gate_up, TYPE *y, long rows, long n); \
    INTERNAL void rotate_##suffix(TYPE *x, long stride, const TYPE *table, long rows, long heads, long dim); \
    INTERNAL void add_##suffix(TYPE *x, const TYPE *y, float scale, long n); \
    INTERNAL void scale_##suffix(const TYPE *x, float scale, TYPE *y, long n); \
    INTERNAL void clip_##suffix(TYPE *x, float most, long n); \
    INTERNAL void store_##suffix(const TYPE *x, long stride, const int64_t *slots, void *pool, long rows, long width, long eight, float scale);
ELEMENTWISE(float, f32)
ELEMENTWISE(bfloat16, bf16)
#undef ELEMENTWISE

#endif
