/* y += scale * B (A x) for rows that have an adapter, one by one: a row's bits do not depend on the others.
   The rank is a multiple of 4.
   For one element type: TYPE, with NAME(f). Sums are float32, and y is rounded once. */

typedef struct {
    const Pair *const *pairs;
    const int64_t *slots;  /* of each row, or of each that `wanted` names */
    const int64_t *wanted; /* [rows], or 0: row `start` and those behind it */
    long start, rows, site, inputs, outputs;
    const TYPE *x;
    TYPE *y;
} NAME(Adapt);

/* h = scale * A x, four of its numbers at a time: each loaded x serves them all. */
CLONES static void NAME(shrink)(const Pair *pair, long piece, const float *x, float *h) {
    const float scale = pair->scales[piece];
    const long n = pair->inputs;
    for (long r = 0; r < pair->rank; r += 4) {
        const TYPE *a = (const TYPE *)pair->a + (piece * pair->rank + r) * n, *b = a + n, *c = b + n, *d = c + n;
        float one = 0, two = 0, three = 0, four = 0;
#pragma omp simd reduction(+ : one, two, three, four)
        for (long i = 0; i < n; i++) {
            one += NAME(to_float)(a[i]) * x[i];
            two += NAME(to_float)(b[i]) * x[i];
            three += NAME(to_float)(c[i]) * x[i];
            four += NAME(to_float)(d[i]) * x[i];
        }
        h[r] = one * scale, h[r + 1] = two * scale, h[r + 2] = three * scale, h[r + 3] = four * scale;
    }
}

CLONES static void NAME(expand)(const Pair *pair, const float *h, long start, long stop, TYPE *y) {
    float sums[ADAPT_BLOCK];
    for (long first = start; first < stop; first += ADAPT_BLOCK) {
        const long count = stop - first < ADAPT_BLOCK ? stop - first : ADAPT_BLOCK;
        memset(sums, 0, count * sizeof(float));
        for (long r = 0; r < pair->rank; r += 4) {
            const TYPE *a = (const TYPE *)pair->b + r * pair->outputs + first, *b = a + pair->outputs, *c = b + pair->outputs, *d = c + pair->outputs;
            const float one = h[r], two = h[r + 1], three = h[r + 2], four = h[r + 3];
#pragma omp simd
            for (long o = 0; o < count; o++)
                sums[o] += one * NAME(to_float)(a[o]) + two * NAME(to_float)(b[o]) + three * NAME(to_float)(c[o]) + four * NAME(to_float)(d[o]);
        }
#pragma omp simd
        for (long o = 0; o < count; o++) y[first + o] = NAME(from_float)(NAME(to_float)(y[first + o]) + sums[o]);
    }
}

static void NAME(adapt_row)(const Pair *pair, const TYPE *x, TYPE *y) {
    const int by_pairs = sizeof(TYPE) == sizeof(bfloat16) && has_pairs;
    float h[MOST_RANK], *wide = NULL;
    if (!pair->a) return;
    if (!by_pairs) NAME(widen)(x, NULL, pair->inputs, wide = adapt_space(pair->inputs));
    for (long run = 0; run < pair->count; run++) {
        const int64_t *at = pair->runs + 3 * run;
        if (pair->scales[at[0]] == 0) continue;
        long first = at[1];
        if (by_pairs) {
            shrink_wide(pair, at[0], (const bfloat16 *)x, h);
            first = expand_wide(pair, h, first, at[2], (bfloat16 *)y);
        } else NAME(shrink)(pair, at[0], wide, h);
        NAME(expand)(pair, h, first, at[2], y);
    }
}

static void NAME(adapt_piece)(const void *work, long row) {
    const NAME(Adapt) *job = work;
    const int64_t slot = job->slots[job->wanted ? job->wanted[row] : job->start + row];
    if (slot >= 0) NAME(adapt_row)(&job->pairs[slot][job->site], job->x + row * job->inputs, job->y + row * job->outputs);
}

static void NAME(adapt)(const NAME(Adapt) *job) { share(NAME(adapt_piece), job, job->rows); }
