/* A layer's mixer that carries a state along, from its normed input to what its last product takes: TYPE, with NAME(f).

   It does what models/delta.py, mamba2.py, mamba1.py and conv.py do one kernel after the other, and rounds where they round. */

typedef struct {
    const Recurrent *mixer;
    const Sequences *own;
    const TYPE *x;      /* [rows, hidden] */
    TYPE *out;          /* [rows, inputs of the last product] */
    long rows, wide;    /* wide: outputs of `input` */
    TYPE *y;            /* [rows, wide] */
    float *convolved;   /* [rows, channels] */
    char *space;        /* for whatever else */
} NAME(Mixing);

static void NAME(project)(const NAME(Mixing) *mix, const Weight *weight, const TYPE *x, TYPE *y) {
    Product job = {weight, x, NULL, y, mix->rows, 0, 0, 0};
    product(&job);
}

/* Columns `from` to `from + count` of x [rows, stride] side by side. */
static void NAME(cut_columns)(const TYPE *x, long stride, long from, long count, long rows, TYPE *y) {
    for (long row = 0; row < rows; row++) memcpy(y + row * count, x + row * stride + from, count * sizeof(TYPE));
}

static void NAME(convolve_from)(const NAME(Mixing) *mix, const TYPE *x, long stride) {
    const Recurrent *mixer = mix->mixer;
    const Convolve job = {x, stride, mixer->kernel, mixer->kernel_bias, mixer->windows, mix->convolved, *mix->own, mixer->channels, mixer->width,
                          mixer->activation};
    NAME(convolve)(&job);
}

static void NAME(gate_all)(const NAME(Mixing) *mix, const float *x, const TYPE *z, long stride) {
    const Recurrent *mixer = mix->mixer;
    const long n = mixer->heads * mixer->value / mixer->spans;
    const GatedNorm job = {x, mixer->weight, z, mix->out, stride, mix->rows, mixer->spans, n, mixer->apart, mixer->gate, mixer->gate_first, mixer->eps};
    NAME(gated)(&job);
}

/* ----- gated delta net and KDA */

/* What gives the decays, rows `stride` apart: in KDA of each channel, from a few numbers. */
static const TYPE *NAME(decays_from)(NAME(Mixing) *mix, const TYPE *rates, long *stride) {
    const Recurrent *mixer = mix->mixer;
    if (!mixer->spread) return rates + mixer->heads;
    TYPE *few = cut(&mix->space, mix->rows * mixer->rank * sizeof(TYPE)), *all = cut(&mix->space, mix->rows * mixer->spread->outputs * sizeof(TYPE));
    NAME(cut_columns)(rates, *stride, mixer->heads, mixer->rank, mix->rows, few);
    NAME(project)(mix, mixer->spread, few, all);
    *stride = mixer->spread->outputs;
    return all;
}

static void NAME(gate_delta)(NAME(Mixing) *mix, const float *out) {
    const Recurrent *mixer = mix->mixer;
    if (!mixer->gates) {
        NAME(gate_all)(mix, out, mix->y + mixer->channels, mix->wide);
        return;
    }
    TYPE *few = cut(&mix->space, mix->rows * mixer->rank * sizeof(TYPE)), *all = cut(&mix->space, mix->rows * mixer->gates->outputs * sizeof(TYPE));
    NAME(cut_columns)(mix->y, mix->wide, mixer->channels, mixer->rank, mix->rows, few);
    NAME(project)(mix, mixer->gates, few, all);
    NAME(gate_all)(mix, out, all, mixer->gates->outputs);
}

static void NAME(mix_delta)(NAME(Mixing) *mix) {
    const Recurrent *mixer = mix->mixer;
    const long rows = mix->rows, heads = mixer->heads, each = mixer->spread ? mixer->key : 1, keys = heads / mixer->shared * mixer->key;
    TYPE *rates = cut(&mix->space, rows * mixer->others->outputs * sizeof(TYPE));
    float *decay = cut(&mix->space, rows * heads * each * sizeof(float)), *beta = cut(&mix->space, rows * heads * sizeof(float));
    float *out = cut(&mix->space, rows * heads * mixer->value * sizeof(float));
    long stride = mixer->others->outputs;
    NAME(convolve_from)(mix, mix->y, mix->wide);
    NAME(project)(mix, mixer->others, mix->x, rates);
    const TYPE *from = NAME(decays_from)(mix, rates, &stride);
    const Rates says = {from, stride, rows, heads, each, mixer->bias, mixer->rate, NULL, decay, mixer->least, mixer->most,
                        rates, mixer->others->outputs, beta, mixer->reach};
    NAME(rates)(&says);
    const Linear job = {mix->convolved, mix->convolved + keys, mix->convolved + 2 * keys, mixer->channels, decay, beta, NULL, NULL, mixer->states, out,
                        *mix->own, heads, mixer->shared, mixer->key, mixer->value, mixer->spread != NULL, mixer->scale, mixer->unit};
    advance(&job);
    NAME(gate_delta)(mix, out);
}

/* ----- Mamba 2 */

static void NAME(mix_mamba2)(NAME(Mixing) *mix) { /* y: gate, x, B, C, time steps */
    const Recurrent *mixer = mix->mixer;
    const long rows = mix->rows, heads = mixer->heads, inner = heads * mixer->value, each = heads / mixer->shared * mixer->key;
    float *steps = cut(&mix->space, rows * heads * sizeof(float)), *decay = cut(&mix->space, rows * heads * sizeof(float));
    float *out = cut(&mix->space, rows * inner * sizeof(float));
    NAME(convolve_from)(mix, mix->y + inner, mix->wide);
    const Rates says = {mix->y + inner + mixer->channels, mix->wide, rows, heads, 1, mixer->bias, mixer->rate, steps, decay, mixer->least, mixer->most,
                        NULL, 0, NULL, 0};
    NAME(rates)(&says);
    const float *b = mix->convolved + inner;
    const Linear job = {b + each, b, mix->convolved, mixer->channels, decay, NULL, steps, mixer->skip, mixer->states, out, *mix->own, heads,
                        mixer->shared, mixer->key, mixer->value, 0, mixer->scale, mixer->unit};
    advance(&job);
    NAME(gate_all)(mix, out, mix->y, mix->wide);
}

/* ----- Mamba 1 */

/* A part of what `select` gives, normed: [rows, count]. */
static TYPE *NAME(selected)(NAME(Mixing) *mix, const TYPE *all, long from, long count, const Norm *norm) {
    TYPE *part = cut(&mix->space, mix->rows * count * sizeof(TYPE));
    NAME(cut_columns)(all, mix->mixer->others->outputs, from, count, mix->rows, part);
    if (norm->kind != NO_NORM) NAME(norm)(norm, part, count, part, count, mix->rows, 1, count);
    return part;
}

static float *NAME(in_floats)(NAME(Mixing) *mix, const TYPE *x, long count) {
    float *wide = cut(&mix->space, count * sizeof(float));
    for (long i = 0; i < count; i++) wide[i] = NAME(to_float)(x[i]);
    return wide;
}

static void NAME(mix_mamba1)(NAME(Mixing) *mix) { /* y: x, gate */
    const Recurrent *mixer = mix->mixer;
    const long rows = mix->rows, inner = mixer->channels, rank = mixer->rank, size = mixer->key;
    NAME(convolve_from)(mix, mix->y, mix->wide);
    TYPE *x = cut(&mix->space, rows * inner * sizeof(TYPE)), *all = cut(&mix->space, rows * mixer->others->outputs * sizeof(TYPE));
    TYPE *wide = cut(&mix->space, rows * inner * sizeof(TYPE));
    float *steps = cut(&mix->space, rows * inner * sizeof(float)), *out = cut(&mix->space, rows * inner * sizeof(float));
    for (long i = 0; i < rows * inner; i++) x[i] = NAME(from_float)(mix->convolved[i]);
    NAME(project)(mix, mixer->others, x, all);
    const TYPE *few = NAME(selected)(mix, all, 0, rank, &mixer->norms[0]);
    const float *b = NAME(in_floats)(mix, NAME(selected)(mix, all, rank, size, &mixer->norms[1]), rows * size);
    const float *c = NAME(in_floats)(mix, NAME(selected)(mix, all, rank + size, size, &mixer->norms[2]), rows * size);
    NAME(project)(mix, mixer->spread, few, wide);
    const Rates says = {wide, inner, rows, inner, 1, NULL, NULL, steps, NULL, mixer->least, mixer->most, NULL, 0, NULL, 0};
    NAME(rates)(&says);
    const Selective job = {mix->convolved, steps, mixer->rate, b, c, mixer->skip, mixer->states, out, *mix->own, inner, size};
    selective(&job);
    NAME(gate_all)(mix, out, mix->y + inner, mix->wide);
}

/* ----- a short convolution between two gates */

CLONES static void NAME(multiply_row)(const TYPE *a, const TYPE *b, TYPE *y, long n) {
#pragma omp simd
    for (long i = 0; i < n; i++) y[i] = NAME(from_float)(NAME(to_float)(a[i]) * NAME(to_float)(b[i]));
}

static void NAME(mix_short)(NAME(Mixing) *mix) { /* y: B, C, x */
    const long n = mix->mixer->channels;
    TYPE *given = cut(&mix->space, mix->rows * n * sizeof(TYPE)), *row = cut(&mix->space, n * sizeof(TYPE));
    for (long r = 0; r < mix->rows; r++) NAME(multiply_row)(mix->y + r * mix->wide, mix->y + r * mix->wide + 2 * n, given + r * n, n);
    NAME(convolve_from)(mix, given, n);
    for (long r = 0; r < mix->rows; r++) {
        for (long i = 0; i < n; i++) row[i] = NAME(from_float)(mix->convolved[r * n + i]);
        NAME(multiply_row)(mix->y + r * mix->wide + n, row, mix->out + r * n, n);
    }
}

/* x [rows, hidden], of the sequences `own` -> out; their states are left. */
static void NAME(recur)(const Recurrent *mixer, const Sequences *own, const TYPE *x, TYPE *out, long rows) {
    const size_t numbers = mixer->input->outputs + 2 * (mixer->others ? mixer->others->outputs : 0) + 2 * (mixer->spread ? mixer->spread->outputs : 0) +
                           (mixer->gates ? mixer->gates->outputs : 0) + 4 * mixer->rank + 4 * mixer->channels + 4 * mixer->key;
    const size_t floats = 4 * mixer->channels + 4 * mixer->heads * (1 + mixer->value) + mixer->heads * mixer->key + 4 * mixer->key;
    char *space = mixture_space(rows * (numbers * sizeof(TYPE) + floats * sizeof(float)) + 32 * 64);
    NAME(Mixing) mix = {mixer, own, x, out, rows, mixer->input->outputs, NULL, NULL, space};
    mix.y = cut(&mix.space, rows * mix.wide * sizeof(TYPE)), mix.convolved = cut(&mix.space, rows * mixer->channels * sizeof(float));
    NAME(project)(&mix, mixer->input, x, mix.y);
    if (mixer->kind == DELTA) NAME(mix_delta)(&mix);
    else if (mixer->kind == MAMBA2) NAME(mix_mamba2)(&mix);
    else if (mixer->kind == MAMBA1) NAME(mix_mamba1)(&mix);
    else NAME(mix_short)(&mix);
}
