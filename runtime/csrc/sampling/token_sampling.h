/* One token for every row of logits on a CPU: what sampling/sampler.py does by torch, which is the oracle of this, in a few passes over a row.

   A row's choice depends on nothing but the row. Where a mask, penalties and bans leave NaN, or nothing, the largest logit says so. */
#ifndef SGL_SAMPLING_TOKEN_SAMPLING_H
#define SGL_SAMPLING_TOKEN_SAMPLING_H

#include "../base/cpu_kernels_common.h"

enum { AT_ONCE = 1 << 16 }; /* columns of all rows that one thread chooses from before another could have begun */

/* As Python packs it: see SamplingRow.packed. */
typedef struct {
    uint64_t seed;
    float inverse_temperature, top_p, min_p;
    int32_t top_k, flags, unused;
} SamplingParams;

typedef struct {
    const float *logits;        /* [rows, stride], of which `width` columns count */
    const SamplingParams *params; /* [rows] */
    const int32_t *const *mask; /* [rows] bit i % 32 of word i / 32 allows column i; or NULL for all columns */
    const int64_t *words;       /* [rows] of a mask; what follows them is not allowed */
    const int32_t *const *ban;  /* [rows] columns that may not come, unless the mask allows no others; or NULL */
    const int64_t *banned;      /* [rows] how many these are */
    const int64_t *position;    /* [rows] the counter of the noise */
    const int32_t *columns;     /* [width] their hashes */
    int64_t *chosen;            /* [rows] the token */
    float *peak;                /* [rows] the largest logit of those that may come */
    long rows, width, stride;
} SampleJob;

INTERNAL void choose(const SampleJob *job);

#endif
