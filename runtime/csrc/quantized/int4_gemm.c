/* Products with weights of four or eight bits in groups of inputs: see quantized_groups.h. */

#include "../base/cpu_isa.h"
#include "../base/thread_scratch.h"
#include "../gemm/gemm_epilogue.h"
#include "quantized_groups.h"
#include "int4_gemm.h"
#include "quantize_activations.h"
#include "quantized_gemm.h"

INTERNAL int int4_isa;

/* ----- the end of a sum */

CLONES INTERNAL void finish_groups(const Product *job, long row, long rows, long block, float *totals) {
    const long output = block * BLOCK, left = job->weight->outputs - output, wide = !in_bfloat16(job->weight);
    const float *factor = grouping(job)->factor;
    for (long r = 0; r < rows; r++, totals += BLOCK) {
        for (long o = 0; factor && o < BLOCK && o < left; o++) totals[o] *= factor[output + o];
        if (left >= BLOCK) end_row(job, wide, row + r, output, BLOCK, totals);
        else end_row(job, wide, row + r, output, left, totals);
    }
}

/* ----- generic */

static int32_t dot_generic(const Grouping *g, const uint8_t *codes, const int8_t *x, int32_t sum) {
    const uint8_t *table = g->table;
    for (long i = 0; i < g->chunk; i++) {
        const uint8_t code = code_at(g, codes, i);
        sum += (table ? table[code] : code) * x[i];
    }
    return sum;
}

static void sums_generic(const Product *job, long row, long block, long rows) {
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
                const int32_t dot = dot_generic(g, codes, x, chunk->start);
                total = fmaf((float)dot, scale_at(g, at, place) * chunk->scale, total);
                if (g->shifts) total = fmaf(shift_at(g, at, place), chunk->sum, total);
            }
            totals[r * BLOCK + o] = total;
        }
    finish_groups(job, row, rows, block, totals);
}

static void blocks_int4_generic(const Product *job, long row, long rows, long block, long end) {
    for (; block < end; block++) sums_generic(job, row, block, rows);
}

/* ----- the whole product */

INTERNAL int best_int4_isa(void) {
#if defined(__x86_64__)
    if (has_vnni()) return VNNI_INT4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return AVX2_INT4;
#endif
    return GENERIC_INT4;
}

INTERNAL void blocks_int4(const Product *job, long row, long rows, long block, long end) {
#if defined(__x86_64__)
    static const Blocks by_avx2[] = {blocks_halves_avx2, blocks_table_avx2, blocks_bytes_avx2};
    static const Blocks by_vnni[] = {blocks_halves_vnni, blocks_table_vnni, blocks_bytes_vnni};
    const Grouping *g = grouping(job);
    const int codes = g->bits == 8 ? BYTES : g->table ? HALVES_OF_TABLE : HALVES;
    if (int4_isa == VNNI_INT4) return by_vnni[codes](job, row, rows, block, end);
    if (int4_isa == AVX2_INT4) return by_avx2[codes](job, row, rows, block, end);
#endif
    blocks_int4_generic(job, row, rows, block, end);
}

INTERNAL void product_int4(const Product *job) {
    if (!job->rows) return;
    const long count = job->rows * grouping(job)->chunks;
    Chunk *chunks = row_scratch(count * (sizeof(Chunk) + MOST_CHUNK));
    ChunkQuantization quantization = {job, chunks, (int8_t *)(chunks + count)};
    share(quantize_chunks_piece, &quantization, ceiling(job->rows, SOME_ROWS));
    Product quantized = *job;
    quantized.x = chunks;
    share_product(&quantized);
}
