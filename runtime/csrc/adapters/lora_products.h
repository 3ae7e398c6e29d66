/* y += scale * B (A x) for rows that have an adapter. First units of A x, of some rows of one adapter and eight of its numbers, then the rest by
   outputs: both in parallel with the pieces of the base's product, or by themselves. A row's bits do not depend on the others. */
#ifndef SGL_ADAPTERS_LORA_PRODUCTS_H
#define SGL_ADAPTERS_LORA_PRODUCTS_H

#include "../base/cpu_kernels_common.h"

enum { STEP_ROWS = 512 }; /* of a step that are computed at a time: their space is kept */
enum { ADAPT_BLOCK = 512, ADAPT_FAR = 4096 }; /* outputs that are added at a time; bytes of A that are fetched ahead */

enum { GROUP_ROWS = 32, UNITS_A_THREAD = 4 }; /* rows of one adapter that are computed at a time; of A x, as each unit costs a turn at two shared counters */

typedef struct { /* an adapter's matrices for one product, of pieces that its outputs belong to */
    const void *a, *b;                         /* [pieces, rank, inputs], or 0: it leaves the product as it is; [rank, outputs]; or as in lora_packed_bf16.c */
    const float *scales;                       /* [pieces]; 0: it leaves the piece as it is */
    const int64_t *runs;                       /* [count, 3] piece, first output, the one after the last */
    int64_t count, rank, inputs, outputs;      /* rank: a multiple of 8 */
    int64_t pieces, packed;
} Pair;

typedef struct { /* rows of one adapter: from `begin` to `end` of ByAdapter.row */
    long slot, begin, end;
} RowGroup;

typedef struct {
    long rows, count;
    int32_t row[STEP_ROWS]; /* [rows] that have an adapter, by slot, rising in each group */
    RowGroup group[STEP_ROWS];
} ByAdapter;

/* rows: at most STEP_ROWS. wanted: which of `slots` are theirs, or 0. */
INTERNAL void group_rows(ByAdapter *by, const int64_t *slots, const int64_t *wanted, long rows);
INTERNAL long pieces_of(const void *from, long first, long end, const char **pieces, long count);

/* Packed pairs, by AVX512_BF16: see lora_packed_bf16.c. */
INTERNAL void shrink_packed(const Pair *pair, long first, const bfloat16 *x, const int32_t *row, long rows, float *h, long width);
INTERNAL void expand_packed(const Pair *pair, const bfloat16 *const *h, float factor, long first, long last, bfloat16 *const *y, long rows);

/* For each element type; see Added for the functions that a product calls. */
#define ADAPT(TYPE, suffix) \
    typedef struct { \
        const ByAdapter *by; \
        const Pair *const *pairs; \
        long site, sites, inputs, outputs; /* sites: of the model */ \
        const TYPE *x; \
        TYPE *y; \
        const long *units; /* [groups + 1] before each group */ \
        float *h; /* [rows, width] of A x, in the order of the groups; of packed pairs bfloat16 */ \
        long width, size; /* size: numbers of A x of a unit, a multiple of eight */ \
    } Adapt_##suffix; \
    INTERNAL long begin_adapted_##suffix(Adapt_##suffix *job, long *units); /* how many units there are; units: [STEP_ROWS + 1] */ \
    INTERNAL void shrink_unit_##suffix(const void *work, long index); \
    INTERNAL long fetch_adapted_##suffix(const void *work, long first, long end, const char **pieces); \
    INTERNAL void finish_adapted_##suffix(const void *work, long row, long rows, long first, long end); \
    INTERNAL void adapt_##suffix(Adapt_##suffix job, const int64_t *slots, long rows); /* by themselves; slots: of each row */
ADAPT(float, f32)
ADAPT(bfloat16, bf16)
#undef ADAPT

#endif
