/* Layers that carry a state along with each sequence, token after token: the same bits however a sequence is cut.

   Sequences follow each other; sequence s has the rows starts[s] to starts[s + 1] - 1. Its state is read from slot read[s] and left in
   slot write[s], which may be the same; no other sequence of the call may read what it writes. Nothing is written to slot NOWHERE. */
#ifndef SGL_RECURRENT_RECURRENT_LAYERS_H
#define SGL_RECURRENT_RECURRENT_LAYERS_H

#include "../base/vector_math.h"
#include "../base/cpu_kernels_common.h"
#include "../elementwise/norm_rope_elementwise.h"
#include "../gemm/gemm.h"

enum { NOWHERE = 1, MOST_KEYS = 256, COLUMNS = 32, NUMBERS = 4096 }; /* as SCRAP_SLOT in cache/states.py */
enum { NO_GATE = -1, SIGMOID = RELU2 + 1 };

typedef struct { /* which rows of a step are whose, and where their states are read and left: see above */
    int64_t count;
    const int64_t *starts, *read, *write;
} Sequences;

/* ----- decays of tokens */

typedef struct { /* steps = softplus(x + bias), at least `least` and at most `most`; decay = steps * rate */
    const void *x;                  /* [rows, heads * each], rows `stride` apart */
    int64_t stride, rows, heads, each;
    const float *bias, *rate;       /* [heads * each]; [heads]; or 0 */
    float *steps, *decay;           /* [rows, heads * each], or 0 */
    double least, most;
    const void *b;                  /* [rows, heads], rows `b_stride` apart, or 0 */
    int64_t b_stride;
    float *beta;                    /* [rows, heads]: reach * sigmoid(b) */
    double reach;
} Rates;

INLINE float softplus(float x) { /* relative error below 4e-7 */
    const float small = exponential(-fabsf(x)), s = small / (2.0f + small), square = s * s;
    float p = 1.0f / 13;
    p = p * square + 1.0f / 11;
    p = p * square + 1.0f / 9;
    p = p * square + 1.0f / 7;
    p = p * square + 1.0f / 5;
    p = p * square + 1.0f / 3;
    p = p * square + 1.0f;
    return (x > 0 ? x : 0) + 2.0f * s * p;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(x < -87.0f ? 87.0f : -x)); }

/* ----- linear attention whose state decays: see layers/recurrent/linear.py */

typedef struct {
    const float *q, *k, *v;         /* [rows, heads / shared, key] of each, and [rows, heads, value]; rows `stride` apart */
    int64_t stride;
    const float *decay, *beta;      /* [rows, heads], or decays [rows, heads, key]; beta 0: without the delta rule */
    const float *times, *skip;      /* [rows, heads] that values are multiplied with; [heads] what of a value goes past the states; or 0 */
    float *memory, *out;            /* [slots, heads, key, value]; [rows, heads, value] */
    Sequences own;
    int64_t heads, shared, key, value, channels; /* channels: decays [rows, heads, key] */
    double scale, unit;             /* of queries; queries and keys are brought to length 1, this is added to its square; below 0: they are not */
} Linear;

INTERNAL void advance(const Linear *job);

/* ----- the selective scan: see layers/recurrent/selective.py */

typedef struct {
    const float *x, *dt, *a, *b, *c, *skip; /* [rows, channels] both; [channels, size]; [rows, size] both; [channels] */
    float *memory, *out;                    /* [slots, channels, size]; [rows, channels] */
    Sequences own;
    int64_t channels, size;
} Selective;

INTERNAL void selective(const Selective *job);

/* ----- the convolution before, and the gate after */

typedef struct { /* see layers/recurrent/convolution.py */
    const void *x;               /* [rows, channels], rows `stride` apart */
    int64_t stride;
    const float *kernel, *bias;  /* [width, channels]; [channels] or 0 */
    void *memory;                /* [slots, width - 1, channels] */
    float *out;                  /* [rows, channels] */
    Sequences own;
    int64_t channels, width, activation; /* NO_GATE: none */
} Convolve;

typedef struct { /* each span of n numbers of a row is divided by its root mean square, times `weight` and an activation of z */
    const float *x, *weight;     /* [rows, spans * n]; [n] for every span, or [spans * n] where it is `apart` */
    const void *z;               /* [rows, spans * n], rows `stride` apart */
    void *out;                   /* [rows, spans * n] */
    int64_t stride, rows, spans, n, apart, gate, gate_first; /* gate_first: the norm is that of the gated numbers */
    double eps;                  /* below 0: no norm */
} GatedNorm;

/* ----- a whole mixer */

enum { DELTA, MAMBA2, MAMBA1, SHORT_CONV };

typedef struct { /* a mixer with a state, see recurrent_mixers.inc; pointers may be 0 where a kind has none of them */
    int64_t kind, heads, shared, key, value;     /* see Linear; MAMBA1: key is the size of a channel's state */
    int64_t channels, width, activation;         /* see Convolve */
    int64_t gate, gate_first, spans, apart;      /* see GatedNorm */
    int64_t rank;                                /* of what `spread` and `gates` take */
    double scale, unit, reach, least, most, eps; /* see Linear, Rates and GatedNorm */
    const float *kernel, *kernel_bias, *bias, *rate, *skip, *weight;
    const Weight *input, *others, *spread, *gates; /* others: DELTA: of beta and decay; MAMBA1: of time steps, B and C */
    Norm norms[3];                               /* MAMBA1: of these */
    void *windows;
    float *states;                               /* the layer's own, of all slots */
} Recurrent;

/* Of both element types. */
#define RECURRENT(TYPE, suffix) \
    INTERNAL void rates_##suffix(const Rates *job); \
    INTERNAL void convolve_##suffix(const Convolve *job); \
    INTERNAL void gated_##suffix(const GatedNorm *job); \
    INTERNAL void gate_row_##suffix(TYPE *mixed, const TYPE *gate, long n); \
    INTERNAL void recur_##suffix(const Recurrent *mixer, const Sequences *own, const TYPE *x, TYPE *out, long rows);
RECURRENT(float, f32)
RECURRENT(bfloat16, bf16)
#undef RECURRENT

#endif
