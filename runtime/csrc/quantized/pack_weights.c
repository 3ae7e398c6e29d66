/* Packs weights, and restores quantized ones, by all threads: a piece is a block of outputs. */

#include "../base/thread_pool.h"
#include "../gemm/gemm.h"
#include "pack_weights.h"

enum { AT_A_TIME = 8, UNITS = 256 }; /* outputs whose lines are in the cache together; units between two groups of them */

static long outputs_of(long block, long outputs) { return outputs - block * BLOCK < BLOCK ? outputs - block * BLOCK : BLOCK; }

/* ----- rows of units */

#define TRANSPOSED(name, Unit) \
    INLINE void name##_of(const char *const *rows, long count, long first, long stop, Unit *to) { \
        for (long i = first; i < stop; i++) \
            for (long o = 0; o < count; o++) memcpy(to + i * BLOCK + o, rows[o] + i * sizeof(Unit), sizeof(Unit)); \
    } \
    CLONES static void name(const char *const *rows, long count, long first, long stop, char *to) { \
        long o = 0; \
        for (; o + AT_A_TIME <= count; o += AT_A_TIME) name##_of(rows + o, AT_A_TIME, first, stop, (Unit *)to + o); \
        name##_of(rows + o, count - o, first, stop, (Unit *)to + o); \
    }
TRANSPOSED(transpose_bytes, uint8_t)
TRANSPOSED(transpose_halves, uint16_t)
TRANSPOSED(transpose_words, uint32_t)

static void pack_rows_piece(const void *given, long block) {
    const RowPacking *job = given;
    const char *const *rows = job->rows + block * BLOCK;
    const long count = outputs_of(block, job->outputs);
    char *to = job->to + block * job->stride;
    if (count < BLOCK) memset(to, 0, job->units * job->size * BLOCK);
    for (long first = 0; first < job->units; first += UNITS) {
        const long stop = job->units - first < UNITS ? job->units : first + UNITS;
        (job->size == 1 ? transpose_bytes : job->size == 2 ? transpose_halves : transpose_words)(rows, count, first, stop, to);
    }
}

INTERNAL void pack_rows(const RowPacking *job) { share(pack_rows_piece, job, ceiling(job->outputs, BLOCK)); }

/* ----- codes */

/* Two words of four codes become one: those of the second are in the high halves. */
CLONES static void pack_pairs(const uint8_t *restrict codes, long count, uint8_t *restrict pairs) {
    for (long i = 0; i < count / 8; i++)
        for (long j = 0; j < 4; j++) pairs[4 * i + j] = codes[8 * i + j] | codes[8 * i + 4 + j] << 4;
}

/* An output's codes from `first` on, zeros after the last. */
static void lay_codes(const CodePacking *job, long output, long first, long wide, uint8_t *to) {
    uint8_t codes[UNPACKED_AT_ONCE], *into = job->bits == 8 ? to : codes;
    const long left = job->stored.inputs - first, count = left < wide ? left : wide;
    unpack_codes(&job->stored, output, first, count, into);
    memset(into + count, 0, wide - count);
    if (job->bits == 4) pack_pairs(codes, wide, to);
}

static void pack_codes_piece(const void *given, long block) {
    const CodePacking *job = given;
    const long count = outputs_of(block, job->stored.outputs);
    uint8_t laid[BLOCK][UNPACKED_AT_ONCE];
    const char *rows[BLOCK];
    for (long o = 0; o < BLOCK; o++) rows[o] = (const char *)laid[o];
    memset(laid, 0, sizeof laid);
    char *to = job->to + block * job->stride;
    for (long first = 0; first < job->padded; first += UNPACKED_AT_ONCE) {
        const long left = job->padded - first, wide = left < UNPACKED_AT_ONCE ? left : UNPACKED_AT_ONCE;
        for (long o = 0; o < count; o++) lay_codes(job, block * BLOCK + o, first, wide, laid[o]);
        transpose_words(rows, BLOCK, 0, wide * job->bits / 32, to);
        to += wide * job->bits / 8 * BLOCK;
    }
}

INTERNAL void pack_codes(const CodePacking *job) { share(pack_codes_piece, job, ceiling(job->stored.outputs, BLOCK)); }

/* ----- numbers of the weight, as QuantizedWeight defines them: float32 throughout, each operation rounded */

/* Inputs from `first` on, without offsets: these are added apart, since a compiler would fuse sum and product, which rounds once less. */
CLONES static void scale_codes(const RestoreJob *job, long row, long first, long count, const uint8_t *codes, float *values) {
    const long at = row * ceiling(job->stored.inputs, job->group);
    const float *table = job->table;
    for (long i = 0; i < count;) {
        const long group = (first + i) / job->group, end = (group + 1) * job->group - first, stop = end < count ? end : count;
        const float zero = job->zero[job->zeros ? at + group : 0], scale = job->scale[at + group];
        if (table)
            for (; i < stop; i++) values[i] = (table[codes[i]] - zero) * scale;
        for (; i < stop; i++) values[i] = ((float)codes[i] - zero) * scale;
    }
    for (long i = 0; job->factor && i < count; i++) values[i] *= job->factor[row];
}

CLONES static __attribute__((noinline)) void add_offsets(const RestoreJob *job, long row, long first, long count, float *values) {
    const float *offset = job->offset + row * ceiling(job->stored.inputs, job->group);
    for (long i = 0; i < count;) {
        const long group = (first + i) / job->group, end = (group + 1) * job->group - first, stop = end < count ? end : count;
        for (; i < stop; i++) values[i] += offset[group];
    }
}

CLONES static void round_numbers(const float *values, long count, bfloat16 *to) {
    for (long i = 0; i < count; i++) to[i] = from_float_bf16(values[i]);
}

static void restore_piece(const void *given, long block) {
    const RestoreJob *job = given;
    uint8_t codes[UNPACKED_AT_ONCE];
    float values[UNPACKED_AT_ONCE];
    const long inputs = job->stored.inputs, count = outputs_of(block, job->stored.outputs);
    for (long row = block * BLOCK; row < block * BLOCK + count; row++)
        for (long first = 0; first < inputs; first += UNPACKED_AT_ONCE) {
            const long wide = inputs - first < UNPACKED_AT_ONCE ? inputs - first : UNPACKED_AT_ONCE;
            unpack_codes(&job->stored, row, first, wide, codes);
            float *to = job->in_bfloat16 ? values : (float *)job->to + row * inputs + first;
            scale_codes(job, row, first, wide, codes, to);
            if (job->offset) add_offsets(job, row, first, wide, to);
            if (job->in_bfloat16) round_numbers(values, wide, (bfloat16 *)job->to + row * inputs + first);
        }
}

INTERNAL void restore_weight(const RestoreJob *job) { share(restore_piece, job, ceiling(job->stored.outputs, BLOCK)); }
