/* y += scale * B (A x) for rows that have an adapter. First units of A x, of some rows of one adapter and eight of its numbers, then the rest by
   outputs: both beside the pieces of the base's product, or by themselves. A row's bits do not depend on the others.

   For one element type: TYPE, with NAME(f). Sums are float32, and y is rounded once more. */

typedef struct {
    const ByAdapter *by;
    const Pair *const *pairs;
    long site, sites, inputs, outputs; /* sites: of the model */
    const TYPE *x;
    TYPE *y;
    const long *units; /* [groups + 1] before each group */
    float *h;          /* [rows, width] of A x, in the order of the groups; of packed pairs bfloat16 */
    long width, size; /* size: numbers of A x of a unit, a multiple of eight */
} NAME(Adapt);

/* h = A x, eight of its numbers. */
CLONES static void NAME(shrink)(const Pair *pair, long first, const TYPE *x, float *h) {
    const long n = pair->inputs;
    for (long r = first; r < first + 8; r += 4) {
        const TYPE *a = (const TYPE *)pair->a + r * n, *b = a + n, *c = b + n, *d = c + n;
        float one = 0, two = 0, three = 0, four = 0;
#pragma omp simd reduction(+ : one, two, three, four)
        for (long i = 0; i < n; i++) {
            const float input = NAME(to_float)(x[i]);
            one += NAME(to_float)(a[i]) * input;
            two += NAME(to_float)(b[i]) * input;
            three += NAME(to_float)(c[i]) * input;
            four += NAME(to_float)(d[i]) * input;
        }
        h[r] = one, h[r + 1] = two, h[r + 2] = three, h[r + 3] = four;
    }
}

CLONES static void NAME(expand)(const Pair *pair, const float *h, float scale, long start, long stop, TYPE *y) {
    float sums[ADAPT_BLOCK];
    for (long first = start; first < stop; first += ADAPT_BLOCK) {
        const long count = stop - first < ADAPT_BLOCK ? stop - first : ADAPT_BLOCK;
        memset(sums, 0, count * sizeof(float));
        for (long r = 0; r < pair->rank; r += 4) {
            const TYPE *a = (const TYPE *)pair->b + r * pair->outputs + first, *b = a + pair->outputs, *c = b + pair->outputs, *d = c + pair->outputs;
            const float one = h[r] * scale, two = h[r + 1] * scale, three = h[r + 2] * scale, four = h[r + 3] * scale;
#pragma omp simd
            for (long o = 0; o < count; o++)
                sums[o] += one * NAME(to_float)(a[o]) + two * NAME(to_float)(b[o]) + three * NAME(to_float)(c[o]) + four * NAME(to_float)(d[o]);
        }
#pragma omp simd
        for (long o = 0; o < count; o++) y[first + o] = NAME(from_float)(NAME(to_float)(y[first + o]) + sums[o]);
    }
}

INLINE const Pair *NAME(pair_of)(const NAME(Adapt) *job, const RowGroup *group) { return &job->pairs[group->slot][job->site]; }

static void NAME(shrink_eight)(const NAME(Adapt) *job, const RowGroup *group, const Pair *pair, long first) {
    if (pair->scales[first / pair->rank] == 0) return;
    if (pair->packed) return shrink_packed(pair, first, (const bfloat16 *)job->x, job->by->row + group->begin, group->end - group->begin, job->h + group->begin * job->width, job->width);
    for (long i = group->begin; i < group->end; i++) NAME(shrink)(pair, first, job->x + job->by->row[i] * job->inputs, job->h + i * job->width);
}

static void NAME(shrink_unit)(const void *work, long index) {
    const NAME(Adapt) *job = work;
    long low = 0, high = job->by->count;
    while (high - low > 1) *(job->units[(low + high) / 2] <= index ? &low : &high) = (low + high) / 2;
    const RowGroup *group = &job->by->group[low];
    const Pair *pair = NAME(pair_of)(job, group);
    const long start = job->size * (index - job->units[low]), all = pair->pieces * pair->rank, end = start + job->size < all ? start + job->size : all;
    for (long first = start; first < end; first += 8) NAME(shrink_eight)(job, group, pair, first);
}

/* Of one group's rows from `row` to `end` the outputs from `first` to `last`, which are of one piece. */
static void NAME(expand_run)(const NAME(Adapt) *job, const RowGroup *group, long piece, long row, long end, long first, long last) {
    const Pair *pair = NAME(pair_of)(job, group);
    const float scale = pair->scales[piece];
    if (scale == 0 || first >= last) return;
    const float *h[2];
    TYPE *y[2];
    long some = 0;
    for (long i = group->begin; i < group->end; i++) {
        const long at = job->by->row[i];
        if (at >= row && at < end) h[some] = job->h + i * job->width, y[some++] = job->y + at * job->outputs;
        if (some < 2 && i + 1 < group->end) continue;
        if (pair->packed && some) {
            const bfloat16 *from[2] = {(const bfloat16 *)h[0] + piece * pair->rank, some > 1 ? (const bfloat16 *)h[1] + piece * pair->rank : NULL};
            expand_packed(pair, from, scale, first, last, (bfloat16 *const *)y, some);
        } else
            for (long r = 0; r < some; r++) NAME(expand)(pair, h[r] + piece * pair->rank, scale, first, last, y[r]);
        some = 0;
    }
}

static void NAME(finish_adapted)(const void *work, long row, long rows, long first, long end) {
    const NAME(Adapt) *job = work;
    for (long g = 0; g < job->by->count; g++) {
        const Pair *pair = NAME(pair_of)(job, &job->by->group[g]);
        for (long run = 0; pair->a && run < pair->count; run++) {
            const int64_t *at = pair->runs + 3 * run;
            if (at[1] < end && at[2] > first) NAME(expand_run)(job, &job->by->group[g], at[0], row, row + rows, at[1] > first ? at[1] : first, at[2] < end ? at[2] : end);
        }
    }
}

/* Packed B of the outputs that follow, and then as much of the next product's A: its rows will not be waited for. */
static long NAME(fetch_adapted)(const void *work, long first, long end, const char **pieces) {
    const NAME(Adapt) *job = work;
    long count = 0;
    if (end > job->outputs) end = job->outputs;
    for (long next = 0; next < 2; next++)
        for (long g = 0; g < job->by->count; g++) {
            const Pair *pair = NAME(pair_of)(job, &job->by->group[g]) + next;
            if ((g && job->by->group[g].slot == job->by->group[g - 1].slot) || job->site + next >= job->sites || !pair->a || !pair->packed) continue;
            const long size = (next ? pair->pieces * pair->inputs : pair->outputs) * pair->rank * (long)sizeof(TYPE);
            count = pieces_of(next ? pair->a : pair->b, size / 64 * first / job->outputs, size / 64 * end / job->outputs, pieces, count);
        }
    return count;
}

/* Numbers of A x of a row of this group. */
INLINE long NAME(width_of)(const NAME(Adapt) *job, long g) {
    const Pair *pair = NAME(pair_of)(job, &job->by->group[g]);
    return pair->a ? pair->pieces * pair->rank : 0;
}

/* What of the job the rows' adapters decide. Returns how many units there are. units: [STEP_ROWS + 1]. */
static long NAME(begin_adapted)(NAME(Adapt) *job, long *units) {
    long count = 0, most = 0, all = 0;
    for (long g = 0; g < job->by->count; g++) all += NAME(width_of)(job, g);
    job->size = 8 * ceiling(all ? all : 1, 8L * UNITS_A_THREAD * team.threads);
    for (long g = 0; g < job->by->count; g++) {
        const long width = NAME(width_of)(job, g);
        units[g] = count, count += ceiling(width, job->size), most = width > most ? width : most;
    }
    units[job->by->count] = count;
    job->units = units, job->width = most, job->h = adapt_space(job->by->rows * most * sizeof(float));
    return count;
}

static void NAME(adapt_piece)(const void *work, long index) {
    const NAME(Adapt) *job = work;
    const long first = index * ADAPT_BLOCK, end = first + ADAPT_BLOCK < job->outputs ? first + ADAPT_BLOCK : job->outputs;
    NAME(finish_adapted)(job, 0, STEP_ROWS, first, end);
}

/* By themselves. slots: of each row. */
static void NAME(adapt)(NAME(Adapt) job, const int64_t *slots, long rows) {
    long units[STEP_ROWS + 1];
    ByAdapter by;
    for (long start = 0; start < rows; start += STEP_ROWS, job.x += STEP_ROWS * job.inputs, job.y += STEP_ROWS * job.outputs) {
        group_rows(&by, slots + start, NULL, rows - start < STEP_ROWS ? rows - start : STEP_ROWS);
        job.by = &by;
        share(NAME(shrink_unit), &job, NAME(begin_adapted)(&job, units));
        share(NAME(adapt_piece), &job, ceiling(job.outputs, ADAPT_BLOCK));
    }
}
