/* The product of any kind of weight: cut into pieces, which the threads share. */

#include "../quantized/quantized_gemm.h"
#include "dense_gemm.h"
#include "gemm.h"

static const Blocks DENSE[][DENSE_ISAS] = {[FLOAT32] = {[BY_AVX2] = blocks_f32_avx2, [BY_AVX512] = blocks_f32},
                                            [BFLOAT16] = {[BY_AVX2] = blocks_bf16_avx2, [BY_AVX512] = blocks_bf16, [BY_AMX] = blocks_amx}};
static const Blocks PRODUCTS[] = {[INT8_FLOAT32] = blocks_int8, [INT8_BFLOAT16] = blocks_int8,
                                   [INT4_FLOAT32] = blocks_int4, [INT4_BFLOAT16] = blocks_int4,
                                   [FLOATS_FLOAT32] = blocks_float, [FLOATS_BFLOAT16] = blocks_float};

static Blocks blocks_for(const Weight *weight) {
    return weight->kind <= BFLOAT16 ? DENSE[weight->kind][dense_isa[weight->kind]] : PRODUCTS[weight->kind];
}

/* Of a stack the first weight's pieces follow them. */
INLINE long units_of(const Product *job) { return job->added && !job->before ? job->added->units : 0; }

static void add_unit(const Added *added, long index) {
    added->unit(added->more, index);
    atomic_fetch_add(added->done, 1);
}

/* The outputs from block to block of a piece's rows, as soon as all units are done: these were begun before any piece was. */
static void finish_piece(const Product *job, long row, long rows, long block, long end) {
    const Added *added = job->added;
    const long last = end * BLOCK < job->weight->outputs ? end * BLOCK : job->weight->outputs;
    for (int spin = 1; atomic_load(added->done) < added->units; spin++) spin % 1000 ? PAUSE() : (void)sched_yield();
    added->finish(added->more, row, rows, job->before + block * BLOCK, job->before + last);
}

/* What is added to the outputs from block to block is fetched: as many lines as the sums have inputs by these themselves, so that they need not
   wait for memory, the others now. Returns how many the sums are to fetch. */
static long fetch_for(const Product *job, long block, long end, const char **pieces, Blocks blocks) {
    const long count = job->added->fetch(job->added->more, job->before + block * BLOCK, job->before + end * BLOCK, pieces);
    const long by_sums = blocks == blocks_bf16 || blocks == blocks_amx ? job->weight->inputs / 2 / FETCHED_LINES : 0, later = count < by_sums ? count : by_sums;
    for (long i = later; i < count; i++) prefetch(pieces[i], FETCHED_LINES * 64);
    return later * FETCHED_LINES;
}

/* A few blocks by some rows: the blocks stay in the first cache while the rows go by in groups of equal size. Of 16 or 32 bits one is
   read at a time for more than one row: two streams of them take longer, by a fifth at two to six rows (measured on Sapphire Rapids). */
INTERNAL void product_piece(const void *work, long index) {
    const Product *job = work;
    const long units = units_of(job);
    if (index < units) return add_unit(job->added, index);
    index -= units;
    const long all = ceiling(job->weight->outputs, BLOCK), groups = ceiling(all, job->piece);
    const long block = index % groups * job->piece, end = block + job->piece < all ? block + job->piece : all;
    const long first = index / groups * PIECE_ROWS, left = job->rows - first, rows = left < PIECE_ROWS ? left : PIECE_ROWS;
    const Blocks blocks = blocks_for(job->weight);
    const long parts = blocks == blocks_amx ? 1 : ceiling(rows, MOST_AT_ONCE);
    const char *fetched[FETCHED];
    Product own = *job;
    own.fetched = fetched;
    const long step = rows > 6 * parts || (rows > 1 && job->weight->kind <= BFLOAT16) ? 1 : PIECE_BLOCKS;
    for (long b = block; b < end; b += step) {
        const long last = b + step < end ? b + step : end;
        if (job->added) own.lines = fetch_for(job, b, last, fetched, blocks);
        for (long part = 0; part < parts; part++, own.lines = 0) {
            long from = rows * part / parts, to = rows * (part + 1) / parts;
            blocks(&own, first + from, to - from, b, last);
        }
    }
    if (job->added) finish_piece(job, first, rows, block, end);
}

/* Blocks of few bits are short: what begins a piece is not fetched ahead, so a piece has more of them if all threads have some. */
static long piece_blocks(const Weight *weight) {
    const long most = ceiling(weight->outputs, BLOCK) / (4L * team.threads);
    if (weight->kind < INT4_FLOAT32 || most < PIECE_BLOCKS) return PIECE_BLOCKS;
    return most < MOST_PIECE ? most : MOST_PIECE;
}

INTERNAL void share_product(const Product *given) {
    Product job = *given;
    job.piece = piece_blocks(job.weight);
    share(product_piece, &job, units_of(&job) + ceiling(ceiling(job.weight->outputs, BLOCK), job.piece) * ceiling(job.rows, PIECE_ROWS));
}

static void product_part(const Product *job);

/* Weights above each other: each computes its columns of y. */
static void product_stack(const Product *stack) {
    const Weight *weight = stack->weight->data;
    const long of_residual = in_bfloat16(stack->weight) ? 2 : 4, of_y = stack->wide ? 4 : of_residual;
    for (long first = 0; first < stack->weight->outputs; first += weight->outputs, weight++) {
        Product part = *stack;
        part.weight = weight, part.before = first;
        part.y = (char *)stack->y + first * of_y;
        if (stack->residual) part.residual = (const char *)stack->residual + first * of_residual;
        product_part(&part);
    }
}

static void product_part(const Product *job) {
    const long kind = job->weight->kind;
    if (kind >= STACK_FLOAT32) product_stack(job);
    else if (kind >= FLOATS_FLOAT32) product_float(job);
    else if (kind >= INT4_FLOAT32) product_int4(job);
    else if (kind >= INT8_FLOAT32) product_int8(job);
    else product_dense(job);
}

INTERNAL void product(const Product *given) {
    Product job = *given;
    job.width = job.weight->outputs;
    product_part(&job);
}
