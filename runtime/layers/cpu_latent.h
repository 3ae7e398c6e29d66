/* Latent attention (arXiv 2405.04434) for one element type: TYPE, with NAME(f), and WIDE, the instructions. All heads read the same rows,
   whose first numbers are the values; the products of each head's own numbers stand before and behind it.

   A piece is a few heads of one query token over SPLIT rows, each of which is fetched once for all of them. Where a token sees more,
   its pieces leave sums, which are merged in order: its bits depend on nothing but the rows that it sees. */

#ifndef LATENT_HEADS
#define LATENT_HEADS 16
enum { SPLIT = 256, MOST_ROW = 1024, WAVE = 1 << 26 }; /* rows of a piece; numbers of a row; bytes of sums that are kept at a time */

typedef struct {
    Attention of;                /* of one KV head, whose group is all heads; dim: of a row */
    long values;                 /* the first numbers of a row */
    long from, splits;           /* tokens before those of this wave; the most that one of them has */
    float *mixed, *most, *total; /* [tokens, splits, heads, values], [tokens, splits, heads] twice */
} Latent;

typedef struct {
    const Latent *job;
    long row, head, heads, split, first, count; /* the piece's rows: of those that the token sees */
} LatentPiece;

static LatentPiece latent_piece(const Latent *job, long index) {
    const long groups = ceiling(job->of.group, LATENT_HEADS), split = index % job->splits, head = index / job->splits % groups * LATENT_HEADS;
    const long row = job->from + index / job->splits / groups, first = split * SPLIT, left = job->of.length[row] - first;
    const long heads = job->of.group - head < LATENT_HEADS ? job->of.group - head : LATENT_HEADS;
    return (LatentPiece){job, row, head, heads, split, first, left < SPLIT ? left : SPLIT};
}

typedef struct { /* y [rows, heads, outputs] = x [rows, heads, inputs] times weight [heads, inputs, outputs], head by head; strides of x */
    const void *x, *weight;
    void *y;
    long rows, heads, inputs, outputs, x_row, x_head;
} Headwise;
#endif

/* What the heads of a piece have summed up: to the result where there is one piece, or to be merged. */
CLONES static void NAME(leave_latent)(const LatentPiece *piece, float (*mixed)[MOST_DIM], const float *most, const float *total) {
    const Latent *job = piece->job;
    const long values = job->values, place = ((piece->row - job->from) * job->splits + piece->split) * job->of.group + piece->head;
    TYPE *out = (TYPE *)job->of.out + (piece->row * job->of.group + piece->head) * values;
    for (long g = 0; g < piece->heads; g++) {
        if (job->splits > 1) {
            memcpy(job->mixed + (place + g) * values, mixed[g], values * sizeof(float));
            job->most[place + g] = most[g], job->total[place + g] = total[g];
            continue;
        }
        const float share = 1.0f / total[g] * job->of.v_scale;
#pragma omp simd
        for (long i = 0; i < values; i++) out[g * values + i] = NAME(from_float)(mixed[g][i] * share);
    }
}

/* One head of one token, of all its pieces. */
CLONES static void NAME(merge_latent)(const void *work, long index) {
    const Latent *job = work;
    const long heads = job->of.group, token = index / heads, head = index % heads, values = job->values, row = job->from + token;
    const long splits = ceiling(job->of.length[row], SPLIT), first = token * job->splits * heads + head;
    float sums[MOST_DIM], total = 0, top = -INFINITY;
    for (long s = 0; s < splits; s++) top = job->most[first + s * heads] > top ? job->most[first + s * heads] : top;
    for (long i = 0; i < values; i++) sums[i] = 0;
    for (long s = 0; s < splits; s++) {
        const long place = first + s * heads;
        const float factor = exponential(job->most[place] - top), *mixed = job->mixed + place * values;
        total += job->total[place] * factor;
#pragma omp simd
        for (long i = 0; i < values; i++) sums[i] += mixed[i] * factor;
    }
    const float share = 1.0f / total * job->of.v_scale;
    TYPE *out = (TYPE *)job->of.out + (row * heads + head) * values;
#pragma omp simd
    for (long i = 0; i < values; i++) out[i] = NAME(from_float)(sums[i] * share);
}

/* ----- plainly */

INLINE void NAME(latent_some)(const LatentPiece *piece, long from, long queries, float (*mixed)[MOST_DIM], float *most, float *total) {
    const Attention *job = &piece->job->of;
    const long dim = job->dim, values = piece->job->values, end = piece->first + piece->count;
    const TYPE *q = (const TYPE *)job->q + piece->row * job->q_stride + (piece->head + from) * dim;
    float query[QUERIES * MOST_ROW], wide[MOST_ROW], score[QUERIES][KEYS], *room = job->eight ? narrow_space(SOME_KEYS * dim * sizeof(float)) : NULL;
    for (long i = 0; i < queries * dim; i++) query[i] = NAME(to_float)(q[i]) * job->scale;
    for (long begin = piece->first; begin < end; begin += KEYS) {
        const long count = end - begin < KEYS ? end - begin : KEYS;
        const int32_t *slots = job->slots[piece->row] + begin;
        for (long j = 0; j < count; j++) {
            const float *row = NAME(widened)(job, job->keys, slots, j, count, 0, wide, room, dim);
            for (long g = 0; g < queries; g++) score[g][j] = dot_f32(query + g * dim, row, dim);
        }
        for (long g = 0; g < queries; g++) {
            float top = most[g], sum = 0;
            for (long j = 0; j < count; j++) top = score[g][j] > top ? score[g][j] : top;
            const float keep = exponential(most[g] - top);
            for (long j = 0; j < count; j++) sum += score[g][j] = exponential(score[g][j] - top);
            total[g] = total[g] * keep + sum, most[g] = top;
            for (long i = 0; i < values; i++) mixed[g][i] *= keep;
        }
        for (long j = 0; j < count; j++) {
            const float *row = NAME(widened)(job, job->keys, slots, j, count, 0, wide, room, dim);
            for (long g = 0; g < queries; g++) {
#pragma omp simd
                for (long i = 0; i < values; i++) mixed[g][i] += score[g][j] * row[i];
            }
        }
    }
}

CLONES static void NAME(latent_plainly)(const void *work, long index) {
    const LatentPiece piece = latent_piece(work, index);
    float mixed[LATENT_HEADS][MOST_DIM], most[LATENT_HEADS], total[LATENT_HEADS];
    if (piece.count <= 0) return;
    for (long g = 0; g < piece.heads; g++) {
        most[g] = -INFINITY, total[g] = 0;
        for (long i = 0; i < piece.job->values; i++) mixed[g][i] = 0;
    }
    for (long g = 0; g < piece.heads; g += QUERIES)
        NAME(latent_some)(&piece, g, piece.heads - g < QUERIES ? piece.heads - g : QUERIES, mixed + g, most + g, total + g);
    NAME(leave_latent)(&piece, mixed, most, total);
}

CLONES static void NAME(headwise_plainly)(const void *work, long index) {
    const Headwise *job = work;
    const long row = index / job->heads, head = index % job->heads, n = job->outputs;
    const TYPE *x = (const TYPE *)job->x + row * job->x_row + head * job->x_head, *weight = (const TYPE *)job->weight + head * job->inputs * n;
    TYPE *y = (TYPE *)job->y + index * n;
    float sums[MOST_DIM];
    for (long from = 0; from < n; from += MOST_DIM) {
        const long count = n - from < MOST_DIM ? n - from : MOST_DIM;
        for (long o = 0; o < count; o++) sums[o] = 0;
        for (long i = 0; i < job->inputs; i++) {
            const float input = NAME(to_float)(x[i]);
#pragma omp simd
            for (long o = 0; o < count; o++) sums[o] += input * NAME(to_float)(weight[i * n + from + o]);
        }
        for (long o = 0; o < count; o++) y[from + o] = NAME(from_float)(sums[o]);
    }
}

/* ----- by AVX-512, for rows and values of whole chunks */

#if defined(__x86_64__)
/* Scores of up to four heads and four rows: each in a register of its own, then added up together. */
WIDE INLINE void NAME(score_tile)(const TYPE *q, const TYPE *const *rows, float scale, float (*score)[KEYS], const long queries, const long dim) {
    __m512 sums[LANES];
#pragma GCC unroll 16
    for (long j = 0; j < LANES; j++) sums[j] = _mm512_setzero_ps();
    for (long i = 0; i < dim; i += CHUNK)
#pragma GCC unroll 4
        for (long g = 0; g < queries; g++)
#pragma GCC unroll 4
            for (long j = 0; j < FEW; j++) sums[g * FEW + j] = NAME(dot_chunk)(sums[g * FEW + j], q + g * dim + i, rows[j] + i);
    __m512 fours[4];
    for (long f = 0; f < 4; f++) fours[f] = add_quarters(sums + 4 * f);
    const __m512 all = _mm512_mul_ps(add_across(fours), _mm512_set1_ps(scale));
    float found[LANES];
    _mm512_storeu_ps(found, all);
    for (long g = 0; g < queries; g++) memcpy(score[g], found + g * FEW, FEW * sizeof(float));
}

/* A block of rows for up to four heads. score: their scores of it. */
WIDE INLINE void NAME(latent_block)(const Latent *job, const TYPE *q, const TYPE *const *rows, long count, float (*score)[KEYS],
                                    float (*mixed)[MOST_DIM], float *most, float *total, const long queries) {
    float keep[FEW];
    for (long j = 0; j < count; j += FEW) NAME(score_tile)(q, rows + j, job->of.scale, (float(*)[KEYS])(&score[0][j]), queries, job->of.dim);
    for (long g = 0; g < queries; g++) keep[g] = soften(score[g], 0, count, &most[g], &total[g]);
    long i = 0;
    for (; i + 2 * CHUNK <= job->values; i += 2 * CHUNK) NAME(mix_chunks)(rows, score, keep, mixed[0], 0, count, i, queries, 2, MOST_DIM);
    if (i < job->values) NAME(mix_chunks)(rows, score, keep, mixed[0], 0, count, i, queries, 1, MOST_DIM);
}

#define EACH_FEW(count, call) \
    switch (count) { \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        default: call(4); break; \
    }

/* From the order of split_chunk, in which bfloat16 is mixed, to that of the numbers. */
WIDE INLINE void NAME(put_in_order)(float *mixed, long values) {
    if (sizeof(TYPE) == 4) return;
    for (long i = 0; i < values; i += CHUNK) {
        float chunk[CHUNK];
        for (long k = 0; k < LANES; k++) chunk[2 * k] = mixed[i + k], chunk[2 * k + 1] = mixed[i + LANES + k];
        memcpy(mixed + i, chunk, sizeof(chunk));
    }
}

WIDE static void NAME(latent_widely)(const void *work, long index) {
    const LatentPiece piece = latent_piece(work, index);
    const Attention *job = &piece.job->of;
    const long dim = job->dim, end = piece.first + piece.count;
    if (piece.count <= 0) return;
    const TYPE *q = (const TYPE *)job->q + piece.row * job->q_stride + piece.head * dim, *rows[KEYS];
    TYPE *room = job->eight ? narrow_space(KEYS * dim * sizeof(TYPE)) : NULL;
    float score[FEW][KEYS], mixed[LATENT_HEADS][MOST_DIM], most[LATENT_HEADS], total[LATENT_HEADS];
    for (long g = 0; g < piece.heads; g++) {
        most[g] = -INFINITY, total[g] = 0;
        for (long i = 0; i < piece.job->values; i++) mixed[g][i] = 0;
    }
    for (long begin = piece.first; begin < end; begin += KEYS) {
        const long count = end - begin < KEYS ? end - begin : KEYS, more = end - begin - count;
        const int32_t *slots = job->slots[piece.row] + begin;
        NAME(find_rows)(job, job->keys, slots, 0, 0, count, rows, room, dim);
        for (long j = count; j < ceiling(count, FEW) * FEW; j++) rows[j] = rows[0]; /* scored too, and left aside */
        NAME(prefetch_rows)(job, job->keys, slots + count, 0, 0, more < KEYS ? more : KEYS, dim);
        for (long g = 0; g < piece.heads; g += FEW) {
#define SOME(queries) NAME(latent_block)(piece.job, q + g * dim, rows, count, score, mixed + g, most + g, total + g, queries)
            EACH_FEW(piece.heads - g, SOME)
#undef SOME
        }
    }
    for (long g = 0; g < piece.heads; g++) NAME(put_in_order)(mixed[g], piece.job->values);
    NAME(leave_latent)(&piece, mixed, most, total);
}

/* Up to four rows of x and one head. `mix_chunks` adds rows of the weight as it does values. */
WIDE INLINE void NAME(headwise_few)(const Headwise *job, long row, long head, long from, const long queries) {
    const long n = job->outputs, width = n - from < MOST_DIM ? n - from : MOST_DIM;
    const TYPE *weight = (const TYPE *)job->weight + head * job->inputs * n + from, *values[KEYS];
    const TYPE *x = (const TYPE *)job->x + row * job->x_row + head * job->x_head;
    TYPE *y = (TYPE *)job->y + (row * job->heads + head) * n + from;
    float inputs[FEW][KEYS], sums[FEW][MOST_DIM], keep[FEW] = {1, 1, 1, 1};
    for (long g = 0; g < queries; g++)
        for (long o = 0; o < width; o++) sums[g][o] = 0;
    for (long begin = 0; begin < job->inputs; begin += KEYS) {
        const long count = job->inputs - begin < KEYS ? job->inputs - begin : KEYS;
        for (long j = 0; j < count; j++) {
            values[j] = weight + (begin + j) * n;
            for (long g = 0; g < queries; g++) inputs[g][j] = NAME(to_float)(x[g * job->x_row + begin + j]);
        }
        long o = 0;
        for (; o + 2 * CHUNK <= width; o += 2 * CHUNK) NAME(mix_chunks)(values, inputs, keep, sums[0], 0, count, o, queries, 2, MOST_DIM);
        if (o < width) NAME(mix_chunks)(values, inputs, keep, sums[0], 0, count, o, queries, 1, MOST_DIM);
    }
    for (long g = 0; g < queries; g++)
        for (long o = 0; o < width; o += CHUNK)
            NAME(join_chunk)(y + g * job->heads * n + o, _mm512_loadu_ps(sums[g] + o), _mm512_loadu_ps(sums[g] + o + LANES));
}

WIDE static void NAME(headwise_widely)(const void *work, long index) {
    const Headwise *job = work;
    const long head = index % job->heads, row = index / job->heads * FEW;
    for (long from = 0; from < job->outputs; from += MOST_DIM) {
#define SOME(queries) NAME(headwise_few)(job, row, head, from, queries)
        EACH_FEW(job->rows - row, SOME)
#undef SOME
    }
}
#undef EACH_FEW
#else
static void NAME(latent_widely)(const void *work, long index) { (void)work, (void)index; }
static void NAME(headwise_widely)(const void *work, long index) { (void)work, (void)index; }
#endif

/* ----- the whole */

static void NAME(headwise)(const Headwise *job) {
    if (NAME(has_wide)(job->outputs)) share(NAME(headwise_widely), job, ceiling(job->rows, FEW) * job->heads);
    else share(NAME(headwise_plainly), job, job->rows * job->heads);
}

/* Tokens in waves, so that the sums of their pieces have room; no sums are kept where every token has one piece. */
static void NAME(attend_latent)(Latent *job) {
    const long heads = job->of.group, groups = ceiling(heads, LATENT_HEADS), numbers = heads * (job->values + 2);
    const Piece run = NAME(has_wide)(job->of.dim) && NAME(has_wide)(job->values) ? NAME(latent_widely) : NAME(latent_plainly);
    float *space = NULL;
    for (long tokens; job->from < job->of.rows; job->from += tokens) {
        long longest = 0;
        for (tokens = 0; job->from + tokens < job->of.rows; tokens++) {
            const long length = job->of.length[job->from + tokens], most = length > longest ? length : longest;
            if (tokens && ceiling(most, SPLIT) > 1 && (tokens + 1) * ceiling(most, SPLIT) * numbers * (long)sizeof(float) > WAVE) break;
            longest = most;
        }
        job->splits = longest > SPLIT ? ceiling(longest, SPLIT) : 1;
        if (job->splits > 1) {
            const long places = tokens * job->splits * heads;
            free(space);
            space = malloc(places * (job->values + 2) * sizeof(float));
            if (!space) abort(); /* a step cannot go on, and a wrong number must not come out */
            job->mixed = space, job->most = space + places * job->values, job->total = job->most + places;
        }
        share(run, job, tokens * groups * job->splits);
        if (job->splits > 1) share(NAME(merge_latent), job, tokens * heads);
    }
    free(space);
}
