/* Products with weights of four or eight bits in groups of inputs:

       w[o][i] = ((v(code[o][i]) - zero[o][g]) * scale[o][g] + offset[o][g]) * factor[o]

   v is the code itself or an entry of a table of 16 whole numbers. A chunk of a row of x (64 inputs, or a group where that
   is smaller) becomes int8 under a scale of its own, a chunk's products are added in int32, exactly, and the chunks in
   float32 in their order: a row's bits do not depend on the others, nor on which of the three ways below computes them.

   A block of 32 outputs, `stride` bytes, is
       scales [groups] [32], float32 or float16, or twofold
       shifts [groups] [32]: nothing, zeros as bytes or float16, or numbers offset - zero * scale, which are as scales are
       codes  of four bits  [inputs / 8] [32] [4]: byte j of an output has input j in its low half and input 4 + j in its high half
              of eight bits [inputs / 4] [32] [4]
   Twofold numbers are products: signed bytes [groups] [32], then float16 [groups / 2^fold] [32].
   Inputs are filled up to whole chunks, outputs to a whole block. */

enum { WIDE_SCALES, HALF_SCALES, TWOFOLD_SCALES };
enum { NO_SHIFT, ZERO_BYTES, ZERO_HALVES, SHIFTS, HALF_SHIFTS, TWOFOLD_SHIFTS };
enum { MOST_CHUNK = 64, BYTE_SIZE = 127, LINE_BYTES = 4 * BLOCK }; /* LINE_BYTES: codes of 8 inputs in four bits, of 4 in eight */
enum { HALVES, HALVES_OF_TABLE, BYTES }; /* what codes are */

enum { PLAIN_INT4, AVX2_INT4, VNNI_INT4 };

static int int4_way; /* set when the module is made; tests take others */

typedef struct { /* as Python lays it out, 8 bytes a field */
    const int32_t *order;  /* [inputs] which input each column belongs to; or 0 */
    const void *table;     /* uint8 [16] what the codes stand for, plus `above`; or 0. Of cpu_float.h float32 [16] */
    const float *factor;   /* [outputs], of the whole sums; or 0 */
    int64_t bits;          /* of a code: 4 or 8, which have no table */
    int64_t group, chunk;  /* inputs; group: a multiple of chunk, chunk: of 16 */
    int64_t scales, shifts; /* what they are */
    int64_t centre, above; /* taken from what a code stands for; what is multiplied without a sign is above a byte with one by so much */
    int64_t groups, chunks, after, fold, codes, stride; /* after: where shifts begin in a block, codes: where these do */
} Grouping;

typedef struct { /* of a row of x */
    float scale, sum;     /* sum: of its numbers */
    int32_t start, above; /* of sums of products: minus the sum of its whole numbers times centre; times `above` */
} Chunk;

INLINE const Grouping *grouping(const Product *job) { return job->weight->scale; }
INLINE const char *shifts_of(const Grouping *g, const char *block) { return block + g->after; }
INLINE long code_bytes(const Grouping *g, long inputs) { return inputs * g->bits / 8 * BLOCK; } /* of a block */

/* Narrowed rows lie chunk by chunk, so that rows of a chunk are a constant apart: Chunk [chunks] [rows], int8 [chunks] [rows] [64]. */
INLINE const Chunk *chunks_of(const Product *job, long row) { return (const Chunk *)job->x + row; }
INLINE const int8_t *wholes_of(const Product *job, long row) {
    return (const int8_t *)((const Chunk *)job->x + grouping(job)->chunks * job->rows) + row * MOST_CHUNK;
}

/* ----- x to int8 */

INLINE void end_chunk(const Grouping *g, Chunk *chunk, float scale, int32_t sum) {
    chunk->scale = scale, chunk->sum = scale * sum;
    chunk->start = -(int32_t)g->centre * sum, chunk->above = (int32_t)g->above * sum;
}

/* rintf and not the trick with a large number: a multiplication that melts into an addition would round otherwise. */
INLINE void narrow_chunk(const float *x, const Grouping *g, Chunk *chunk, int8_t *y) {
    float peak = 0, strange = 0; /* strange is NaN for a chunk with NaN or infinity, and so is all that comes of it */
    int32_t sum = 0;
#pragma omp simd reduction(max : peak) reduction(+ : strange)
    for (long i = 0; i < g->chunk; i++) {
        float size = fabsf(x[i]);
        peak = size > peak ? size : peak;
        strange += size * 0.0f;
    }
    const float inverse = peak > 1e-30f ? BYTE_SIZE / peak : 0.0f;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < g->chunk; i++) {
        const int32_t whole = (int32_t)rintf(x[i] * inverse);
        y[i] = (int8_t)whole;
        sum += (int8_t)whole;
    }
    end_chunk(g, chunk, peak / BYTE_SIZE + strange, sum);
}

#define NARROWED(type, suffix) \
    CLONES static void narrow_chunks_##suffix(const type *x, long n, const Grouping *g, Chunk *chunks, int8_t *y, long rows) { \
        float part[MOST_CHUNK]; \
        for (long at = 0; at < n; at += g->chunk, chunks += rows, y += rows * MOST_CHUNK) { \
            const long count = n - at < g->chunk ? n - at : g->chunk; \
            if (g->order) \
                for (long i = 0; i < count; i++) part[i] = to_float_##suffix(x[g->order[at + i]]); \
            else \
                _Pragma("omp simd") for (long i = 0; i < count; i++) part[i] = to_float_##suffix(x[at + i]); \
            for (long i = count; i < g->chunk; i++) part[i] = 0; \
            narrow_chunk(part, g, chunks, y); \
        } \
    }
NARROWED(float, f32)
NARROWED(bfloat16, bf16)
#undef NARROWED
#include "../quantized/quantize_activations_avx512.c"

typedef struct {
    const Product *from;
    Chunk *chunks;
    int8_t *wholes;
} ChunkNarrowing;

static void narrow_chunks_piece(const void *work, long index) {
    const ChunkNarrowing *job = work;
    const Product *from = job->from;
    const Grouping *g = grouping(from);
    const long n = from->weight->inputs, first = index * SOME_ROWS;
    const long end = first + SOME_ROWS < from->rows ? first + SOME_ROWS : from->rows, widely = int4_way == VNNI_INT4 && !g->order;
    for (long row = first; row < end; row++) {
        Chunk *chunks = job->chunks + row;
        int8_t *wholes = job->wholes + row * MOST_CHUNK;
        if (in_bfloat16(from->weight)) (widely ? narrow_widely_bf16 : narrow_chunks_bf16)((const bfloat16 *)from->x + row * n, n, g, chunks, wholes, from->rows);
        else (widely ? narrow_widely_f32 : narrow_chunks_f32)((const float *)from->x + row * n, n, g, chunks, wholes, from->rows);
    }
}

/* ----- the end of a sum */

/* totals: [rows][BLOCK] of one block. */
CLONES static void finish_groups(const Product *job, long row, long rows, long block, float *totals) {
    const long output = block * BLOCK, left = job->weight->outputs - output, wide = !in_bfloat16(job->weight);
    const float *factor = grouping(job)->factor;
    for (long r = 0; r < rows; r++, totals += BLOCK) {
        for (long o = 0; factor && o < BLOCK && o < left; o++) totals[o] *= factor[output + o];
        if (left >= BLOCK) end_row(job, wide, row + r, output, BLOCK, totals);
        else end_row(job, wide, row + r, output, left, totals);
    }
}

/* ----- plainly */

INLINE float half_to_float(uint16_t x) {
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    uint32_t bits = rest >= 0x7c00 ? 0x7f800000 | rest << 13 : (rest << 13) + 0x38000000;
    float y = rest * 0x1p-24f; /* also zero: below the smallest normal number */
    if (rest >= 0x0400) memcpy(&y, &bits, 4);
    return sign ? -y : y;
}

/* Where the second factors lie behind the first, and which of them goes with those from `at` on. */
INLINE const uint16_t *outer_at(const Grouping *g, const char *inner, long at) {
    return (const uint16_t *)(inner + g->groups * BLOCK) + (at / BLOCK >> g->fold) * BLOCK + at % BLOCK;
}

INLINE float twofold_at(const Grouping *g, const char *inner, long at) {
    return ((const int8_t *)inner)[at] * half_to_float(*outer_at(g, inner, at));
}

INLINE float scale_at(const Grouping *g, const char *block, long at) {
    if (g->scales == TWOFOLD_SCALES) return twofold_at(g, block, at);
    return g->scales == HALF_SCALES ? half_to_float(((const uint16_t *)block)[at]) : ((const float *)block)[at];
}

INLINE float shift_at(const Grouping *g, const char *block, long at) {
    const char *shifts = shifts_of(g, block);
    if (g->shifts == TWOFOLD_SHIFTS) return twofold_at(g, shifts, at);
    if (g->shifts == SHIFTS) return ((const float *)shifts)[at];
    if (g->shifts == HALF_SHIFTS) return half_to_float(((const uint16_t *)shifts)[at]);
    return scale_at(g, block, at) * (0.0f - (g->shifts == ZERO_BYTES ? ((const uint8_t *)shifts)[at] : half_to_float(((const uint16_t *)shifts)[at])));
}

INLINE uint8_t code_at(const Grouping *g, const uint8_t *codes, long i) {
    if (g->bits == 8) return codes[i / 4 * LINE_BYTES + i % 4];
    return codes[i / 8 * LINE_BYTES + i % 4] >> i / 4 % 2 * 4 & 15;
}

static int32_t plain_dot(const Grouping *g, const uint8_t *codes, const int8_t *x, int32_t sum) {
    const uint8_t *table = g->table;
    for (long i = 0; i < g->chunk; i++) {
        const uint8_t code = code_at(g, codes, i);
        sum += (table ? table[code] : code) * x[i];
    }
    return sum;
}

static void plain_sums(const Product *job, long row, long block, long rows) {
    const Grouping *g = grouping(job);
    const char *at = (const char *)job->weight->data + block * g->stride;
    float totals[MOST_AT_ONCE * BLOCK];
    for (long r = 0; r < rows; r++)
        for (long o = 0; o < BLOCK; o++) {
            const Chunk *chunk = chunks_of(job, row + r);
            const int8_t *x = wholes_of(job, row + r);
            float total = 0;
            for (long c = 0; c < g->chunks; c++, chunk += job->rows, x += job->rows * MOST_CHUNK) {
                const uint8_t *codes = (const uint8_t *)at + g->codes + code_bytes(g, c * g->chunk) + 4 * o;
                const long place = c * g->chunk / g->group * BLOCK + o;
                const int32_t dot = plain_dot(g, codes, x, chunk->start);
                total = fmaf((float)dot, scale_at(g, at, place) * chunk->scale, total);
                if (g->shifts) total = fmaf(shift_at(g, at, place), chunk->sum, total);
            }
            totals[r * BLOCK + o] = total;
        }
    finish_groups(job, row, rows, block, totals);
}

static void blocks_int4_plain(const Product *job, long row, long rows, long block, long end) {
    for (; block < end; block++) plain_sums(job, row, block, rows);
}

#if defined(__x86_64__)
#include "../quantized/int4_avx2.c"
#include "../quantized/int4_vnni.c"
#endif

/* ----- the whole product */

static int int4_ways(void) { /* the best way here */
#if defined(__x86_64__)
    if (has_vnni()) return VNNI_INT4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return AVX2_INT4;
#endif
    return PLAIN_INT4;
}

static void blocks_int4(const Product *job, long row, long rows, long block, long end) {
#if defined(__x86_64__)
    static const Blocks by_avx2[] = {blocks_halves_avx2, blocks_table_avx2, blocks_bytes_avx2};
    static const Blocks by_vnni[] = {blocks_halves_vnni, blocks_table_vnni, blocks_bytes_vnni};
    const Grouping *g = grouping(job);
    const int codes = g->bits == 8 ? BYTES : g->table ? HALVES_OF_TABLE : HALVES;
    if (int4_way == VNNI_INT4) return by_vnni[codes](job, row, rows, block, end);
    if (int4_way == AVX2_INT4) return by_avx2[codes](job, row, rows, block, end);
#endif
    blocks_int4_plain(job, row, rows, block, end);
}

static void product_int4(const Product *job) {
    if (!job->rows) return;
    const long count = job->rows * grouping(job)->chunks;
    Chunk *chunks = narrow_space(count * (sizeof(Chunk) + MOST_CHUNK));
    ChunkNarrowing narrowing = {job, chunks, (int8_t *)(chunks + count)};
    share(narrow_chunks_piece, &narrowing, ceiling(job->rows, SOME_ROWS));
    Product narrowed = *job;
    narrowed.x = chunks;
    share_product(&narrowed);
}
