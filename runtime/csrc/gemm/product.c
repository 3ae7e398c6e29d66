/* y [rows, outputs] = x w^T + bias + residual, the weight read once for all rows.

   A weight lies in blocks of 32 outputs, so that a register holds sums of 16 and nothing is added across registers:
       float32   [outputs / 32] [inputs]     [32]       by AVX-512, or as cpu_product_avx2.h
       bfloat16  [outputs / 32] [inputs / 2] [32] [2]   pairs of inputs: by AVX512_BF16, which multiplies them exactly, as cpu_product_amx.h, or as cpu_product_avx2.h
       int8      likewise: cpu_int8.h
       groups    of whole numbers in 4 and 8 bits: cpu_int4.h; of small floats: cpu_float.h
   The last block is filled up with zeros. A sum runs over the inputs in order, whatever rows it is computed with. */

enum { /* from the third on: the weights, and what x is */
    FLOAT32, BFLOAT16, INT8_FLOAT32, INT8_BFLOAT16, INT4_FLOAT32, INT4_BFLOAT16, FLOATS_FLOAT32, FLOATS_BFLOAT16, STACK_FLOAT32, STACK_BFLOAT16
};
enum { BLOCK = 32, MOST_AT_ONCE = 12, PIECE_BLOCKS = 2, MOST_PIECE = 8, PIECE_ROWS = 96 }; /* rows whose sums the registers hold; of a piece */
enum { FAR = 8192 }; /* bytes of a weight that are fetched ahead */
enum { FETCHED = 64, FETCHED_LINES = 16 }; /* pieces of memory that are fetched while a block is computed; lines of 64 bytes of each */

typedef struct { /* as Python lays it out, 8 bytes a field; bias is 0 or of the activations' type */
    const void *data, *bias, *scale; /* scale: of int8, float32 [outputs]; of groups, a Grouping. data: of a stack, its Weights */
    int64_t kind, outputs, inputs;
} Weight;

typedef struct { /* what is added to a product by those who compute it: `units` of work come before its pieces, then each piece is finished */
    void (*unit)(const void *more, long index);
    long (*fetch)(const void *more, long first, long end, const char **pieces);       /* what finishing these outputs will read, FETCHED pieces at most */
    void (*finish)(const void *more, long row, long rows, long first, long end);      /* of these rows the outputs from `first` to `end` */
    const void *more;
    long units;
    atomic_long *done; /* units so far */
} Added;

typedef struct {
    const Weight *weight;
    const void *x, *residual;
    void *y;
    long rows;
    int wide;   /* y is float32 [rows, outputs], of numbers rounded to the activations' type */
    long piece; /* blocks of a piece */
    long width; /* numbers of a row of y, and of residual: of a stack's weights, those of all */
    const Added *added; /* or 0 */
    long before;        /* outputs of a stack before this weight's */
    const char *const *fetched; /* pieces of memory to fetch, line by line, while sums run over the inputs */
    long lines;                 /* of them all */
} Product;

typedef void (*Blocks)(const Product *job, long row, long rows, long block, long end);

INLINE int in_bfloat16(const Weight *weight) { return weight->kind & 1; }

/* A switch whose every case calls with a constant number of rows, so that the sums stay in registers. */
#define EACH_ROWS(rows, call) \
    switch (rows) { \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 4: call(4); break; \
        case 5: call(5); break; \
        case 6: call(6); break; \
    }

#if defined(__x86_64__)

/* ----- float32 by AVX-512 */

WIDE_f32 INLINE void finish_f32(const Product *job, long row, long output, __m512 sum) {
    const long left = job->weight->outputs - output, place = row * job->width + output;
    if (left <= 0) return;
    const __mmask16 mask = lanes_left(left);
    if (job->weight->bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, (const float *)job->weight->bias + output));
    if (job->residual) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, (const float *)job->residual + place));
    _mm512_mask_storeu_ps((float *)job->y + place, mask, sum);
}

/* `rows` times `blocks` is at most 12: with the weights and an input that is as many registers as there are. */
WIDE_f32 INLINE void sums_f32(const Product *job, long row, long block, const long rows, const long blocks) {
    const long n = job->weight->inputs;
    const float *x = (const float *)job->x + row * n, *w = (const float *)job->weight->data + block * n * BLOCK;
    __m512 sums[12][4];
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_setzero_ps();
    for (long i = 0; i < n; i++) {
        __m512 weights[4];
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            const float *at = w + (v / 2 * n + i) * BLOCK + v % 2 * LANES;
            __builtin_prefetch((const char *)at + FAR);
            weights[v] = _mm512_loadu_ps(at);
        }
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++) {
            __m512 input = _mm512_set1_ps(x[r * n + i]);
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_fmadd_ps(weights[v], input, sums[r][v]);
        }
    }
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) finish_f32(job, row + r, block * BLOCK + v * LANES, sums[r][v]);
}

#define BLOCKS WIDE_f32 static void blocks_f32
#define SUMS sums_f32
#include "../gemm/row_blocks.inc"

/* ----- bfloat16 by AVX512_BF16, whose instruction multiplies 16 pairs exactly and adds them in float32 */

WIDE_bf16 INLINE __m512 widened(const bfloat16 *from, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

WIDE_bf16 INLINE void finish_bf16(const Product *job, long row, long output, __m512 sum) {
    const long left = job->weight->outputs - output, place = row * job->width + output;
    if (left <= 0) return;
    const __mmask16 mask = lanes_left(left);
    if (job->weight->bias) sum = _mm512_add_ps(sum, widened((const bfloat16 *)job->weight->bias + output, mask));
    if (job->residual) sum = _mm512_add_ps(sum, widened((const bfloat16 *)job->residual + place, mask));
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sum);
    if (job->wide)
        _mm512_mask_storeu_ps((float *)job->y + place, mask,
                              _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
    else
        _mm256_mask_storeu_epi16((bfloat16 *)job->y + place, mask, rounded);
}

/* sums += weights * inputs. Written out because GCC copies the intrinsic's sums around, and runs out of registers. */
WIDE_bf16 INLINE void add_products(__m512 *sums, __m512bh weights, __m512bh inputs) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(*sums) : "v"(weights), "v"(inputs));
}

WIDE_bf16 INLINE void sums_bf16(const Product *job, long row, long block, const long rows, const long blocks) {
    const long n = job->weight->inputs, pairs = n / 2;
    const bfloat16 *x = (const bfloat16 *)job->x + row * n;
    const bfloat16 *w = (const bfloat16 *)job->weight->data + block * n * BLOCK;
    __m512 sums[12][4];
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) sums[r][v] = _mm512_setzero_ps();
    for (long i = 0; i < pairs; i++) {
        __m512bh weights[4];
        if (i < job->lines) __builtin_prefetch(job->fetched[i / FETCHED_LINES] + i % FETCHED_LINES * 64);
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) {
            const bfloat16 *at = w + (v / 2 * pairs + i) * 2 * BLOCK + v % 2 * 2 * LANES;
            __builtin_prefetch((const char *)at + FAR);
            weights[v] = (__m512bh)_mm512_loadu_si512(at);
        }
#pragma GCC unroll 12
        for (long r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, x + r * n + 2 * i, 4);
            __m512bh inputs = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (long v = 0; v < 2 * blocks; v++) add_products(&sums[r][v], weights[v], inputs);
        }
    }
#pragma GCC unroll 12
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (long v = 0; v < 2 * blocks; v++) finish_bf16(job, row + r, block * BLOCK + v * LANES, sums[r][v]);
}

#define BLOCKS WIDE_bf16 static void blocks_bf16
#define SUMS sums_bf16
#include "../gemm/row_blocks.inc"
#else
static void blocks_f32(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
static void blocks_bf16(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
#endif

#include "../gemm/epilogue.h"
#include "../quantized/int8.c"
#include "../quantized/int4.c"
#include "../quantized/floats.c"
#include "../gemm/dense_amx.c"
#include "../gemm/dense_avx2.c"

/* ----- all kinds */

static const Blocks DENSE[][DENSE_WAYS] = {[FLOAT32] = {[BY_AVX2] = blocks_f32_avx2, [BY_AVX512] = blocks_f32},
                                            [BFLOAT16] = {[BY_AVX2] = blocks_bf16_avx2, [BY_AVX512] = blocks_bf16, [BY_AMX] = blocks_amx}};
static const Blocks PRODUCTS[] = {[INT8_FLOAT32] = blocks_int8, [INT8_BFLOAT16] = blocks_int8,
                                   [INT4_FLOAT32] = blocks_int4, [INT4_BFLOAT16] = blocks_int4,
                                   [FLOATS_FLOAT32] = blocks_float, [FLOATS_BFLOAT16] = blocks_float};

static Blocks blocks_for(const Weight *weight) {
    return weight->kind <= BFLOAT16 ? DENSE[weight->kind][dense_way[weight->kind]] : PRODUCTS[weight->kind];
}

/* Of a stack the first weight's pieces come behind them. */
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
    const long beside = blocks == blocks_bf16 || blocks == blocks_amx ? job->weight->inputs / 2 / FETCHED_LINES : 0, later = count < beside ? count : beside;
    for (long i = later; i < count; i++) prefetch(pieces[i], FETCHED_LINES * 64);
    return later * FETCHED_LINES;
}

/* A few blocks by some rows: the blocks stay in the first cache while the rows go by in groups of equal size. Of 16 or 32 bits one is
   read at a time for more than one row: two streams of them take longer, by a fifth at two to six rows (measured on Sapphire Rapids). */
static void product_piece(const void *work, long index) {
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

static void share_product(const Product *given) {
    Product job = *given;
    job.piece = piece_blocks(job.weight);
    share(product_piece, &job, units_of(&job) + ceiling(ceiling(job.weight->outputs, BLOCK), job.piece) * ceiling(job.rows, PIECE_ROWS));
}

static void product_part(const Product *job);

/* Weights above each other: each gives its columns of y. */
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

static void product(const Product *given) {
    Product job = *given;
    job.width = job.weight->outputs;
    product_part(&job);
}
