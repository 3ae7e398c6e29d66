/* Mixtures of experts: which experts a token goes to, with which weights, and the tokens of each expert together. */
#ifndef SGL_EXPERTS_MOE_EXPERTS_H
#define SGL_EXPERTS_MOE_EXPERTS_H

#include "../base/vector_math.h"
#include "../gemm/gemm.h"

typedef struct { /* what Python lays out, 8 bytes a field: the same names in models/expert_words.py; see Router in models/spec.py */
    int64_t count, top_k, hidden;
    int64_t inner, activation;               /* of one expert */
    int64_t shared_inner, shared_activation; /* of the network that every token goes through */
    int64_t sigmoid, best_first, groups, kept_groups, two_best, normalise;
    double outside, floor, scale, limit, shared_limit; /* limit: 0 for none */
    const float *correction;                           /* [count], or 0 */
    int64_t *chosen_before;                            /* [count], how often each was chosen, is added to; or 0 */
    const Weight *router, *shared_up, *shared_down, *switched; /* the last three: or 0 */
    const Weight *const *up, *const *down;             /* [here] */
    /* Where experts are on several ranks: of an expert with copies, the row number n of all that ever chose it is computed by copy n % copies */
    int64_t here, most_copies;            /* networks that are here: count, but for ranks */
    const int64_t *copies;                /* [count], or 0: all are here, once */
    const int64_t *places;                /* [count, most_copies], which of the networks here a copy is; negative: it is elsewhere */
} Experts;

INLINE float sigmoid_alone(float x) { return 1.0f / (1.0f + exponential(x > 87.0f ? -87.0f : -x)); }

/* One token: logits [count] -> chosen [top_k] and weights [top_k]. space: 3 count floats, and count ints */
INTERNAL void route(const Experts *experts, const float *logits, float *space, int32_t *kept, int32_t *chosen, float *weights);
INTERNAL long group(const Experts *experts, int32_t *chosen, long rows, long *begin, long *place, long *token);

INTERNAL void mixture_f32(const Experts *experts, const float *x, float *y, long rows);
INTERNAL void mixture_bf16(const Experts *experts, const bfloat16 *x, bfloat16 *y, long rows);

#endif
