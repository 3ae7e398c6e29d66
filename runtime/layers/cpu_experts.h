/* A mixture of experts for some rows, for one element type: TYPE, with NAME(f). */

typedef struct {
    const Experts *experts;
    const TYPE *x;
    TYPE *y;
    long rows, pairs, inner;          /* of the network that is being computed */
    long activation;
    float limit;
    float *wide_x, *logits, *space, *weights, *shares;
    int32_t *kept, *chosen;
    long *begin, *place, *token, *first;
    Product *jobs;
    TYPE *taken, *up, *active, *given, *every;
} NAME(Mixture);

static void NAME(route_piece)(const void *work, long index) {
    const NAME(Mixture) *mix = work;
    const long count = mix->experts->count, most = mix->experts->top_k, end = (index + 1) * SOME_ROWS;
    for (long row = index * SOME_ROWS; row < end && row < mix->rows; row++)
        route(mix->experts, mix->logits + row * count, mix->space + row * 3 * count, mix->kept + row * count,
              mix->chosen + row * most, mix->weights + row * most);
}

static void NAME(take_piece)(const void *work, long index) {
    const NAME(Mixture) *mix = work;
    const long n = mix->experts->hidden, end = (index + 1) * SOME_ROWS;
    for (long at = index * SOME_ROWS; at < end && at < mix->pairs; at++)
        memcpy(mix->taken + at * n, mix->x + mix->token[at] * n, n * sizeof(TYPE));
}

/* Gate is at most `most`, up within it on both sides, and one is added to up. */
CLONES static void NAME(limit)(TYPE *gate_up, float most, long rows, long n) {
    for (long row = 0; row < rows; row++, gate_up += 2 * n)
#pragma omp simd
        for (long i = 0; i < n; i++) {
            float gate = NAME(to_float)(gate_up[i]), up = NAME(to_float)(gate_up[n + i]);
            up = up > most ? most : up;
            gate_up[i] = NAME(from_float)(gate > most ? most : gate);
            gate_up[n + i] = NAME(from_float)((up < -most ? -most : up) + 1.0f);
        }
}

static void NAME(active_piece)(const void *work, long index) {
    const NAME(Mixture) *mix = work;
    const long n = mix->inner, row = index * SOME_ROWS, left = mix->pairs - row, rows = left < SOME_ROWS ? left : SOME_ROWS;
    if (mix->limit) NAME(limit)(mix->up + row * 2 * n, mix->limit, rows, n);
    NAME(activate_and_mul)(mix->activation, mix->up + row * 2 * n, mix->active + row * n, rows, n);
}

CLONES static void NAME(sum_row)(const NAME(Mixture) *mix, long row) {
    const Experts *experts = mix->experts;
    const long n = experts->hidden, most = experts->top_k;
    enum { PART = 64 };
    for (long from = 0; from < n; from += PART) {
        const long count = n - from < PART ? n - from : PART;
        float sums[PART] = {0};
        for (long j = 0; j < most; j++) {
            if (mix->place[row * most + j] < 0) continue;
            const float weight = mix->weights[row * most + j];
            const TYPE *given = mix->given + mix->place[row * most + j] * n + from;
#pragma omp simd
            for (long i = 0; i < count; i++) sums[i] += weight * NAME(to_float)(given[i]);
        }
        if (mix->every) {
            const float weight = mix->shares ? sigmoid_alone(mix->shares[row]) : 1.0f;
            const TYPE *every = mix->every + row * n + from;
#pragma omp simd
            for (long i = 0; i < count; i++) sums[i] += weight * NAME(to_float)(every[i]);
        }
#pragma omp simd
        for (long i = 0; i < count; i++) mix->y[row * n + from + i] = NAME(from_float)(sums[i]);
    }
}

static void NAME(sum_piece)(const void *work, long index) {
    const NAME(Mixture) *mix = work;
    for (long row = index * SOME_ROWS; row < (index + 1) * SOME_ROWS && row < mix->rows; row++) NAME(sum_row)(mix, row);
}

/* One product for each expert here that was chosen. */
static void NAME(by_expert)(NAME(Mixture) *mix, const Weight *const *weights, const TYPE *x, TYPE *y) {
    long jobs = 0;
    for (long e = 0; e < mix->experts->here; e++) {
        const long begin = mix->begin[e], rows = mix->begin[e + 1] - begin;
        if (!rows) continue;
        const Product job = {weights[e], x + begin * weights[e]->inputs, NULL, y + begin * weights[e]->outputs, rows, 0, 0};
        mix->jobs[jobs++] = job;
    }
    if (jobs) products(mix->jobs, jobs, mix->first);
}

static void NAME(choose)(NAME(Mixture) *mix) {
    const Experts *experts = mix->experts;
    const long numbers = mix->rows * experts->hidden;
    for (long i = 0; i < numbers; i++) mix->wide_x[i] = NAME(to_float)(mix->x[i]);
    Product logits = {experts->router, mix->wide_x, NULL, mix->logits, mix->rows, 0, 0};
    product(&logits);
    share(NAME(route_piece), mix, ceiling(mix->rows, SOME_ROWS));
    mix->pairs = group(experts, mix->chosen, mix->rows, mix->begin, mix->place, mix->token);
    if (!mix->shares) return;
    Product shares = {experts->switched, mix->wide_x, NULL, mix->shares, mix->rows, 0, 0};
    product(&shares);
}

static void NAME(run_shared)(NAME(Mixture) *mix) {
    const Experts *experts = mix->experts;
    Product up = {experts->shared_up, mix->x, NULL, mix->up, mix->rows, 0, 0};
    Product down = {experts->shared_down, mix->active, NULL, mix->every, mix->rows, 0, 0};
    product(&up);
    mix->pairs = mix->rows, mix->inner = experts->shared_inner, mix->activation = experts->shared_activation, mix->limit = (float)experts->shared_limit;
    share(NAME(active_piece), mix, ceiling(mix->rows, SOME_ROWS));
    product(&down);
}

/* y [rows, hidden]: what the network adds to x's residual; it may not be x. */
static void NAME(mixture)(const Experts *experts, const TYPE *x, TYPE *y, long rows) {
    const long n = experts->hidden, count = experts->count, pairs = rows * experts->top_k;
    const long wide = pairs * experts->inner > rows * experts->shared_inner ? pairs * experts->inner : rows * experts->shared_inner;
    const size_t floats = rows * (n + 4 * count + 1) + pairs, numbers = 2 * pairs * n + 3 * wide + rows * n;
    char *space = mixture_space(floats * sizeof(float) + (rows * count + pairs) * sizeof(int32_t) + (2 * pairs + 2 * count + 2) * sizeof(long) +
                                count * sizeof(Product) + numbers * sizeof(TYPE) + 16 * 64);
    NAME(Mixture) mix = {.experts = experts, .x = x, .y = y, .rows = rows, .pairs = pairs, .inner = experts->inner,
                         .activation = experts->activation, .limit = (float)experts->limit};
    mix.wide_x = cut(&space, rows * n * sizeof(float)), mix.logits = cut(&space, rows * count * sizeof(float));
    mix.space = cut(&space, rows * 3 * count * sizeof(float)), mix.weights = cut(&space, pairs * sizeof(float));
    mix.shares = experts->switched ? cut(&space, rows * sizeof(float)) : NULL;
    mix.kept = cut(&space, rows * count * sizeof(int32_t)), mix.chosen = cut(&space, pairs * sizeof(int32_t));
    mix.begin = cut(&space, (count + 1) * sizeof(long)), mix.first = cut(&space, (count + 1) * sizeof(long));
    mix.place = cut(&space, pairs * sizeof(long)), mix.token = cut(&space, pairs * sizeof(long)), mix.jobs = cut(&space, count * sizeof(Product));
    mix.taken = cut(&space, pairs * n * sizeof(TYPE)), mix.given = cut(&space, pairs * n * sizeof(TYPE));
    mix.up = cut(&space, 2 * wide * sizeof(TYPE)), mix.active = cut(&space, wide * sizeof(TYPE));
    mix.every = experts->shared_up ? cut(&space, rows * n * sizeof(TYPE)) : NULL;
    NAME(choose)(&mix);
    share(NAME(take_piece), &mix, ceiling(mix.pairs, SOME_ROWS));
    NAME(by_expert)(&mix, experts->up, mix.taken, mix.up);
    share(NAME(active_piece), &mix, ceiling(mix.pairs, SOME_ROWS));
    NAME(by_expert)(&mix, experts->down, mix.active, mix.given);
    if (mix.every) NAME(run_shared)(&mix);
    share(NAME(sum_piece), &mix, ceiling(rows, SOME_ROWS));
}
