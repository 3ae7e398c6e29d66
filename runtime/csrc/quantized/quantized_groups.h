/* Products with weights of four or eight bits in groups of inputs:

       w[o][i] = ((v(code[o][i]) - zero[o][g]) * scale[o][g] + offset[o][g]) * factor[o]

   v is the code itself or an entry of a table of 16 whole numbers. A chunk of a row of x (64 inputs, or a group where that
   is smaller) becomes int8 with its own scale, a chunk's products are added in int32, exactly, and the chunks in
   float32 in their order: a row's bits do not depend on the others, nor on which instruction set computes them.

   A block of 32 outputs, `stride` bytes, is
       scales [groups] [32], float32 or float16, or double-quantized
       shifts [groups] [32]: nothing, zeros as bytes or float16, or numbers offset - zero * scale, which are as scales are
       codes  of four bits  [inputs / 8] [32] [4]: byte j of an output has input j in its low half and input 4 + j in its high half
              of eight bits [inputs / 4] [32] [4]
   Double-quantized numbers are products: signed bytes [groups] [32], then float16 [groups / 2^fold] [32].
   Inputs are filled up to whole chunks, outputs to a whole block. */
#ifndef SGL_QUANTIZED_QUANTIZED_GROUPS_H
#define SGL_QUANTIZED_QUANTIZED_GROUPS_H

#include "../gemm/gemm.h"

enum { FLOAT_SCALES, HALF_SCALES, DOUBLE_QUANTIZED_SCALES };
enum { NO_SHIFT, ZERO_BYTES, ZERO_HALVES, SHIFTS, HALF_SHIFTS, DOUBLE_QUANTIZED_SHIFTS };
enum { MOST_CHUNK = 64, BYTE_SIZE = 127, LINE_BYTES = 4 * BLOCK }; /* LINE_BYTES: codes of 8 inputs in four bits, of 4 in eight */
enum { HALVES, HALVES_OF_TABLE, BYTES }; /* what codes are */

enum { GENERIC_INT4, AVX2_INT4, VNNI_INT4 };

INTERNAL_DATA int int4_isa; /* the instruction set in use: set when the module is made; tests take others */

typedef struct { /* as Python lays it out, 8 bytes a field */
    const int32_t *order;  /* [inputs] which input each column belongs to; or 0 */
    const void *table;     /* uint8 [16] the values of the codes, plus `above`; or 0. Of small_float_gemm.c float32 [16] */
    const float *factor;   /* [outputs], of the whole sums; or 0 */
    int64_t bits;          /* of a code: 4 or 8, which have no table */
    int64_t group, chunk;  /* inputs; group: a multiple of chunk, chunk: of 16 */
    int64_t scales, shifts; /* what they are */
    int64_t centre, above; /* taken from the value of a code; what is multiplied without a sign is above a byte with one by so much */
    int64_t groups, chunks, after, fold, codes, stride; /* after: where shifts begin in a block, codes: where these do */
} Grouping;

typedef struct { /* of a row of x */
    float scale, sum;     /* sum: of its numbers */
    int32_t start, above; /* of sums of products: minus the sum of its whole numbers times centre; times `above` */
} Chunk;

INLINE const Grouping *grouping(const Product *job) { return job->weight->scale; }
INLINE const char *shifts_of(const Grouping *g, const char *block) { return block + g->after; }
INLINE long code_bytes(const Grouping *g, long inputs) { return inputs * g->bits / 8 * BLOCK; } /* of a block */

/* Quantized rows are stored chunk by chunk, so that rows of a chunk are a constant apart: Chunk [chunks] [rows], int8 [chunks] [rows] [64]. */
INLINE const Chunk *chunks_of(const Product *job, long row) { return (const Chunk *)job->x + row; }
INLINE const int8_t *wholes_of(const Product *job, long row) {
    return (const int8_t *)((const Chunk *)job->x + grouping(job)->chunks * job->rows) + row * MOST_CHUNK;
}

/* ----- scales, shifts and codes of a block */

INLINE float half_to_float(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    uint32_t bits = rest >= 0x7c00 ? 0x7f800000 | rest << 13 : (rest << 13) + 0x38000000;
    float y = rest * 0x1p-24f; /* also zero: below the smallest normal number */
    if (rest >= 0x0400) memcpy(&y, &bits, 4);
    return sign ? -y : y;
}

/* Where the second factors are after the first, and which of them goes with those from `at` on. */
INLINE const uint16_t *outer_at(const Grouping *g, const char *inner, long at) {
    return (const uint16_t *)(inner + g->groups * BLOCK) + (at / BLOCK >> g->fold) * BLOCK + at % BLOCK;
}

INLINE float double_quantized_at(const Grouping *g, const char *inner, long at) {
    return ((const int8_t *)inner)[at] * half_to_float(*outer_at(g, inner, at));
}

INLINE float scale_at(const Grouping *g, const char *block, long at) {
    if (g->scales == DOUBLE_QUANTIZED_SCALES) return double_quantized_at(g, block, at);
    return g->scales == HALF_SCALES ? half_to_float(((const uint16_t *)block)[at]) : ((const float *)block)[at];
}

INLINE float shift_at(const Grouping *g, const char *block, long at) {
    const char *shifts = shifts_of(g, block);
    if (g->shifts == DOUBLE_QUANTIZED_SHIFTS) return double_quantized_at(g, shifts, at);
    if (g->shifts == SHIFTS) return ((const float *)shifts)[at];
    if (g->shifts == HALF_SHIFTS) return half_to_float(((const uint16_t *)shifts)[at]);
    return scale_at(g, block, at) * (0.0f - (g->shifts == ZERO_BYTES ? ((const uint8_t *)shifts)[at] : half_to_float(((const uint16_t *)shifts)[at])));
}

INLINE uint8_t code_at(const Grouping *g, const uint8_t *codes, long i) {
    if (g->bits == 8) return codes[i / 4 * LINE_BYTES + i % 4];
    return codes[i / 8 * LINE_BYTES + i % 4] >> i / 4 % 2 * 4 & 15;
}

/* ----- the end of a sum */

INTERNAL void finish_groups(const Product *job, long row, long rows, long block, float *totals); /* totals: [rows][BLOCK] of one block */

#endif
