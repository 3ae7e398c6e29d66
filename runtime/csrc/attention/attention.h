/* Attention of query tokens over scattered keys and values. */
#ifndef SGL_ATTENTION_ATTENTION_H
#define SGL_ATTENTION_ATTENTION_H

#include "../base/vector_math.h"
#include "../base/cpu_kernels_common.h"

/* What one attention call needs; rows are query tokens, heads are KV heads. Strides count elements. */
typedef struct {
    const void *q, *keys, *values;
    void *out;
    const int32_t *const *slots; /* [rows] where the slots of the tokens begin that a row sees */
    const int64_t *length;       /* [rows] how many they are */
    const int64_t *before;       /* [rows] their first one's position */
    long rows, kv_heads, group, dim, q_stride;
    float scale, softcap; /* scores are capped after scaling; 0: they are not */
    const float *sinks;   /* [heads] one more logit each, which has no value; or 0 */
    int64_t eight;        /* keys and values are e4m3 */
    float v_scale;        /* that values are to be multiplied with; that of keys is in `scale` */
} Attention;

INLINE void cap(float *score, long count, float most) {
#pragma omp simd
    for (long j = 0; j < count; j++) score[j] = most * hyperbolic_tangent(score[j] / most);
}

/* 1 / the sum of all weights; `total` is that of the keys, measured from `most`. */
INLINE float share_of_keys(const Attention *job, long head, float most, float total) {
    if (!job->sinks) return 1.0f / total;
    const float sink = job->sinks[head], top = sink > most ? sink : most, keep = exponential(most - top);
    return keep / (total * keep + exponential(sink - top));
}

INTERNAL void attend_f32(const Attention *job);
INTERNAL void attend_bf16(const Attention *job);

#endif
