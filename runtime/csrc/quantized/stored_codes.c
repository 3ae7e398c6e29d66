/* Codes out of the blocks of GGUF files; runtime/quantization/readers/gguf_blocks.py has the same in torch, and the numbers that go with them. */

#include "../base/thread_pool.h"
#include "../gemm/gemm.h"
#include "stored_codes.h"

typedef struct {
    void (*unpack)(const uint8_t *from, long count, uint8_t *codes);
    int elements, bytes; /* of a block */
} BlockKind;

/* `count` codes of four bits: the first half of a run is low in its bytes, the second high. */
INLINE void nibbles(const uint8_t *from, long run, long count, uint8_t *codes) {
    for (long start = 0; start < count; start += run, from += run / 2)
        for (long i = 0; i < run / 2; i++) codes[start + i] = from[i] & 15, codes[start + run / 2 + i] = from[i] >> 4;
}

/* The fifth bits of 32 codes, eight in a byte: each byte of a word keeps its own of them, and a carry moves it to the top. */
INLINE void add_fifths(const uint8_t *from, uint8_t *codes) {
    for (long i = 0; i < 4; i++) {
        uint64_t eight, bits = from[i] * 0x0101010101010101u & 0x8040201008040201u;
        memcpy(&eight, codes + 8 * i, 8);
        eight |= (bits + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
        memcpy(codes + 8 * i, &eight, 8);
    }
}

/* Of 128 codes two bits each, of 32 bytes: the lowest bits of all of them, then the next. */
INLINE void add_two_bits(const uint8_t *from, int shift, uint8_t *codes) {
    for (long run = 0; run < 4; run++)
        for (long i = 0; i < 32; i++) codes[32 * run + i] |= (from[i] >> 2 * run & 3) << shift;
}

/* Of 256 codes one bit each, of 32 bytes in the same order. */
INLINE void add_one_bit(const uint8_t *from, int shift, uint8_t *codes) {
    for (long run = 0; run < 8; run++)
        for (long i = 0; i < 32; i++) codes[32 * run + i] |= (from[i] >> run & 1) << shift;
}

INLINE void unpack_nvfp4(const uint8_t *block, uint8_t *codes) { nibbles(block + 4, 16, 64, codes); }
INLINE void unpack_mxfp4(const uint8_t *block, uint8_t *codes) { nibbles(block + 1, 32, 32, codes); }
INLINE void unpack_q4_0(const uint8_t *block, uint8_t *codes) { nibbles(block + 2, 32, 32, codes); }
INLINE void unpack_q4_1(const uint8_t *block, uint8_t *codes) { nibbles(block + 4, 32, 32, codes); }
INLINE void unpack_q5_0(const uint8_t *block, uint8_t *codes) { nibbles(block + 6, 32, 32, codes), add_fifths(block + 2, codes); }
INLINE void unpack_q5_1(const uint8_t *block, uint8_t *codes) { nibbles(block + 8, 32, 32, codes), add_fifths(block + 4, codes); }
INLINE void unpack_q8_0(const uint8_t *block, uint8_t *codes) {
    for (long i = 0; i < 32; i++) codes[i] = block[2 + i] ^ 128;
}
INLINE void unpack_q4_k(const uint8_t *block, uint8_t *codes) { nibbles(block + 16, 64, 256, codes); }
INLINE void unpack_q5_k(const uint8_t *block, uint8_t *codes) { nibbles(block + 48, 64, 256, codes), add_one_bit(block + 16, 4, codes); }
INLINE void unpack_iq4_xs(const uint8_t *block, uint8_t *codes) { nibbles(block + 8, 32, 256, codes); }
INLINE void unpack_q2_k(const uint8_t *block, uint8_t *codes) {
    memset(codes, 0, 256);
    for (long half = 0; half < 2; half++) add_two_bits(block + 16 + 32 * half, 0, codes + 128 * half);
}
INLINE void unpack_q3_k(const uint8_t *block, uint8_t *codes) {
    memset(codes, 0, 256);
    for (long half = 0; half < 2; half++) add_two_bits(block + 32 + 32 * half, 0, codes + 128 * half);
    add_one_bit(block, 2, codes);
}
INLINE void unpack_q6_k(const uint8_t *block, uint8_t *codes) {
    nibbles(block, 128, 256, codes);
    for (long half = 0; half < 2; half++) add_two_bits(block + 128 + 32 * half, 4, codes + 128 * half);
}

#define UNPACKED(kind, elements, bytes) \
    CLONES static void kind##_blocks(const uint8_t *from, long count, uint8_t *codes) { \
        for (long i = 0; i < count; i += elements, from += bytes) unpack_##kind(from, codes + i); \
    }
UNPACKED(q4_0, 32, 18)
UNPACKED(q4_1, 32, 20)
UNPACKED(q5_0, 32, 22)
UNPACKED(q5_1, 32, 24)
UNPACKED(q8_0, 32, 34)
UNPACKED(q2_k, 256, 84)
UNPACKED(q3_k, 256, 110)
UNPACKED(q4_k, 256, 144)
UNPACKED(q5_k, 256, 176)
UNPACKED(q6_k, 256, 210)
UNPACKED(iq4_xs, 256, 136)
UNPACKED(mxfp4, 32, 17)
UNPACKED(nvfp4, 64, 36)

static const BlockKind block_kinds[MOST_BLOCK_KINDS] = {
    [2] = {q4_0_blocks, 32, 18},   [3] = {q4_1_blocks, 32, 20},    [6] = {q5_0_blocks, 32, 22},    [7] = {q5_1_blocks, 32, 24},
    [8] = {q8_0_blocks, 32, 34},   [10] = {q2_k_blocks, 256, 84},  [11] = {q3_k_blocks, 256, 110}, [12] = {q4_k_blocks, 256, 144},
    [13] = {q5_k_blocks, 256, 176}, [14] = {q6_k_blocks, 256, 210}, [20] = {q4_0_blocks, 32, 18},   [23] = {iq4_xs_blocks, 256, 136},
    [39] = {mxfp4_blocks, 32, 17}, [40] = {nvfp4_blocks, 64, 36},
};

INTERNAL void unpack_codes(const StoredCodes *stored, long row, long first, long count, uint8_t *codes) {
    const uint8_t *from = stored->rows[row];
    const BlockKind *kind = block_kinds + stored->kind;
    if (kind->unpack) kind->unpack(from + first / kind->elements * kind->bytes, count, codes);
    else memcpy(codes, from + first, count);
}

static void unpack_piece(const void *given, long block) {
    const UnpackJob *job = given;
    const StoredCodes *stored = &job->stored;
    for (long row = block * BLOCK; row < stored->outputs && row < (block + 1) * BLOCK; row++)
        for (long first = 0; first < stored->inputs; first += UNPACKED_AT_ONCE) {
            const long left = stored->inputs - first, count = left < UNPACKED_AT_ONCE ? left : UNPACKED_AT_ONCE;
            unpack_codes(stored, row, first, count, job->codes + row * stored->inputs + first);
        }
}

INTERNAL void unpack_all(const UnpackJob *job) { share(unpack_piece, job, ceiling(job->stored.outputs, BLOCK)); }
