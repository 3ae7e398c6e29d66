/* Codes of a weight as files have them, each row by itself: one a byte, or in the blocks of a GGUF file. */
#ifndef SGL_QUANTIZED_STORED_CODES_H
#define SGL_QUANTIZED_STORED_CODES_H

#include "../base/cpu_kernels_common.h"

enum { UNPACKED_AT_ONCE = 256, MOST_BLOCK_KINDS = 64 }; /* codes, a multiple of the block of each kind */

typedef struct {             /* as Python lays it out, 8 bytes a field */
    const uint8_t *const *rows; /* [outputs] where each begins */
    int64_t kind;            /* 0: a code a byte; or the number that GGUF has for blocks */
    int64_t outputs, inputs; /* inputs: of GGUF's blocks whole ones */
} StoredCodes;

typedef struct {
    StoredCodes stored;
    uint8_t *codes; /* [outputs, inputs] */
} UnpackJob;

INTERNAL void unpack_codes(const StoredCodes *stored, long row, long first, long count, uint8_t *codes); /* first: a multiple of UNPACKED_AT_ONCE, count: up to it */
INTERNAL void unpack_all(const UnpackJob *job);

#endif
