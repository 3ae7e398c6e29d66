/* Weights into the blocks that products read: unit i of the block's output o is unit i * BLOCK + o of the block. */
#ifndef SGL_QUANTIZED_PACK_WEIGHTS_H
#define SGL_QUANTIZED_PACK_WEIGHTS_H

#include "stored_codes.h"

typedef struct { /* as Python lays it out, 8 bytes a field */
    const char *const *rows; /* [outputs] where each begins */
    char *to;                /* in the first block */
    int64_t stride;          /* bytes from block to block */
    int64_t outputs, units, size; /* units: of a row; size: bytes of each, 1, 2 or 4 */
} RowPacking;

typedef struct { /* as Python lays it out, 8 bytes a field */
    StoredCodes stored;
    char *to;
    int64_t stride, padded, bits; /* padded: inputs of a block, zeros after the last; bits: 4 or 8, see quantized_groups.h */
} CodePacking;

typedef struct { /* as Python lays it out, 8 bytes a field; the numbers of QuantizedWeight in float32, [outputs, groups] */
    StoredCodes stored;
    const float *scale, *zero, *offset, *factor, *table; /* offset, factor and table may be 0 */
    int64_t group, zeros;    /* zeros: of a row, or 0: one for all */
    void *to;                /* [outputs, inputs] */
    int64_t in_bfloat16;
} RestoreJob;

INTERNAL void pack_rows(const RowPacking *job);
INTERNAL void pack_codes(const CodePacking *job);
INTERNAL void restore_weight(const RestoreJob *job);

#endif
