/* Of cpu_recurrent.h what reads and writes the model's type: TYPE, with NAME(f) giving f its suffix. */

CLONES static void NAME(rates_row)(const Rates *job, long row) {
    const TYPE *x = (const TYPE *)job->x + row * job->stride, *b = job->b ? (const TYPE *)job->b + row * job->b_stride : NULL;
    const long n = job->heads * job->each;
    const float least = (float)job->least, most = (float)job->most;
    float *steps = job->steps ? job->steps + row * n : job->decay + row * n;
#pragma omp simd
    for (long i = 0; i < n; i++) {
        float step = softplus(NAME(to_float)(x[i]) + (job->bias ? job->bias[i] : 0.0f));
        step = step < least ? least : step;
        steps[i] = step > most ? most : step;
    }
    for (long head = 0; job->decay && head < job->heads; head++)
        for (long i = head * job->each; i < (head + 1) * job->each; i++) job->decay[row * n + i] = steps[i] * job->rate[head];
    for (long head = 0; b && head < job->heads; head++) job->beta[row * job->heads + head] = (float)job->reach * sigmoid(NAME(to_float)(b[head]));
}

static void NAME(rates)(const Rates *job) {
    for (long row = 0; row < job->rows; row++) NAME(rates_row)(job, row);
}

/* ----- the convolution */

enum { NAME(SOME_CHANNELS) = 512 }; /* of a piece */

#define ROW(kind) \
    _Pragma("omp simd") for (long i = 0; i < count; i++) y[i] = activated(kind, y[i])
INLINE void NAME(convolve_row)(const Convolve *job, const TYPE *const *seen, long at, long count, float *y) {
    for (long j = 0; j < job->width; j++) {
        const float *own = job->kernel + j * job->channels + at;
        const TYPE *x = seen[j];
#pragma omp simd
        for (long i = 0; i < count; i++) y[i] = (j ? y[i] : 0.0f) + NAME(to_float)(x[i]) * own[i];
    }
    if (job->bias)
#pragma omp simd
        for (long i = 0; i < count; i++) y[i] += job->bias[at + i];
    if (job->activation != NO_GATE) { EACH_ACTIVATION(job->activation, ROW) }
}
#undef ROW

/* Row `place` of a sequence, where those below 0 lie in the state. */
INLINE const TYPE *NAME(seen_row)(const Convolve *job, const TYPE *state, long first, long place, long at) {
    return place < 0 ? state + (place + job->width - 1) * job->channels : (const TYPE *)job->x + (first + place) * job->stride + at;
}

CLONES static void NAME(convolve_piece)(const void *work, long index) { /* some channels of a sequence */
    const Convolve *job = work;
    const long blocks = ceiling(job->channels, NAME(SOME_CHANNELS)), sequence = index / blocks, at = index % blocks * NAME(SOME_CHANNELS);
    const long left = job->channels - at, count = left < NAME(SOME_CHANNELS) ? left : NAME(SOME_CHANNELS), before = job->width - 1;
    const long first = job->own.starts[sequence], rows = job->own.starts[sequence + 1] - first, target = job->own.write[sequence];
    const TYPE *state = (const TYPE *)job->memory + job->own.read[sequence] * before * job->channels + at, *seen[MOST_SEEN];
    for (long row = 0; row < rows; row++) {
        for (long j = 0; j < job->width; j++) seen[j] = NAME(seen_row)(job, state, first, row + j - before, at);
        NAME(convolve_row)(job, seen, at, count, job->out + (first + row) * job->channels + at);
    }
    TYPE *to = (TYPE *)job->memory + target * before * job->channels + at;
    for (long j = 0; target != NOWHERE && j < before; j++) /* rising: in place each row comes from one behind it */
        memmove(to + j * job->channels, NAME(seen_row)(job, state, first, rows + j - before, at), count * sizeof(TYPE));
}

static void NAME(convolve)(const Convolve *job) {
    share(NAME(convolve_piece), job, job->own.count * ceiling(job->channels, NAME(SOME_CHANNELS)));
}

/* ----- the gate */

INLINE float NAME(gate_of)(const int kind, TYPE z) { return kind == SIGMOID ? sigmoid(NAME(to_float)(z)) : activated(SILU, NAME(to_float)(z)); }

INLINE void NAME(gated_span)(const GatedNorm *job, const float *x, const float *weight, const TYPE *z, TYPE *to, long n, const int kind, const int first) {
    float sum = 0, scale = 1;
    if (job->eps >= 0) {
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < n; i++) {
            const float y = first ? x[i] * NAME(gate_of)(kind, z[i]) : x[i];
            sum += y * y;
        }
        scale = 1.0f / sqrtf(sum / n + (float)job->eps);
    }
#pragma omp simd
    for (long i = 0; i < n; i++) to[i] = NAME(from_float)(x[i] * scale * (weight ? weight[i] : 1.0f) * NAME(gate_of)(kind, z[i]));
}

CLONES static void NAME(gated_piece)(const void *work, long row) {
    const GatedNorm *job = work;
    for (long span = 0; span < job->spans; span++) {
        const long at = span * job->n, place = row * job->spans * job->n + at;
        const float *weight = job->weight ? job->weight + (job->apart ? at : 0) : NULL;
        const TYPE *z = (const TYPE *)job->z + row * job->stride + at;
        TYPE *to = (TYPE *)job->out + place;
        if (job->gate == SIGMOID) NAME(gated_span)(job, job->x + place, weight, z, to, job->n, SIGMOID, 0);
        else if (job->gate_first) NAME(gated_span)(job, job->x + place, weight, z, to, job->n, SILU, 1);
        else NAME(gated_span)(job, job->x + place, weight, z, to, job->n, SILU, 0);
    }
}

static void NAME(gated)(const GatedNorm *job) { share(NAME(gated_piece), job, job->rows); }

/* mixed *= sigmoid(gate), rounded twice as in torch. */
CLONES static void NAME(gate_row)(TYPE *mixed, const TYPE *gate, long n) {
#pragma omp simd
    for (long i = 0; i < n; i++) mixed[i] = NAME(from_float)(NAME(to_float)(mixed[i]) * NAME(to_float)(NAME(from_float)(sigmoid(NAME(to_float)(gate[i])))));
}
