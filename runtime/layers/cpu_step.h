/* Layers of a decoder in one call, phase by phase, for one element type: TYPE, with NAME(f).

   It does what the layers do one by one from Python, and rounds where they round: the numbers are the same bits. */

typedef struct {
    const Model *model;
    const Step *step;
    const Layer *layer;
    const Norm *norm;              /* that is due, of `from` to `to`; or behind a branch, which is then added */
    const TYPE *from;
    TYPE *to;
    long start, rows;              /* of the step's rows, where those here begin; how many go on */
    const int64_t *wanted;         /* [results] of the step's rows, rising */
    long results;                  /* of these rows those that go on behind the last layer */
    TYPE *x, *normed, *wide, *mixed, *inner; /* [rows, ...]: residual; normed, or a branch; qkv, then up; attention; activated */
    ByAdapter by;                  /* of the rows */
} NAME(Walk);

INLINE long NAME(count)(const NAME(Walk) *walk, long row) {
    return walk->rows - row < SOME_ROWS ? walk->rows - row : SOME_ROWS;
}

static void NAME(by_rows)(Piece run, const NAME(Walk) *walk) { share(run, walk, ceiling(walk->rows, SOME_ROWS)); }

static void NAME(multiply)(const NAME(Walk) *walk, const Weight *weight, const TYPE *x, const TYPE *residual, void *y, int wide) {
    Product job = {weight, x, residual, y, walk->rows, wide, 0, 0};
    product(&job);
}

/* y of x, with what the rows' adapters add to it. */
static void NAME(multiply_adapted)(const NAME(Walk) *walk, const Weight *weight, const TYPE *x, const TYPE *residual, TYPE *y) {
    const Layer *layer = walk->layer;
    const long site = weight == &layer->qkv ? QKV : weight == &layer->output ? OUTPUT : weight == &layer->up ? UP : DOWN;
    if (!walk->by.count) return NAME(multiply)(walk, weight, x, residual, y, 0);
    long units[STEP_ROWS + 1];
    atomic_long done = 0;
    NAME(Adapt) job = {&walk->by, walk->step->pairs, (layer - walk->model->layer) * SITES + site, walk->step->stop * SITES, weight->inputs, weight->outputs, x, y, NULL, NULL, 0, 0};
    const Added added = {NAME(shrink_unit), NAME(fetch_adapted), NAME(finish_adapted), &job, NAME(begin_adapted)(&job, units), &done};
    Product whole = {weight, x, residual, y, walk->rows, 0, 0, 0, added.units ? &added : NULL, 0};
    product(&whole);
}

/* ----- norms, and branches that are added */

static void NAME(norm_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const long row = index * SOME_ROWS, n = walk->model->hidden;
    NAME(norm)(walk->norm, walk->from + row * n, n, walk->to + row * n, n, NAME(count)(walk, row), 1, n);
}

static const TYPE *NAME(normed)(NAME(Walk) *walk, const Norm *norm, TYPE *to) {
    if (norm->kind == NO_NORM) return walk->x;
    walk->norm = norm, walk->from = walk->x, walk->to = to;
    NAME(by_rows)(NAME(norm_piece), walk);
    return to;
}

static void NAME(join_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const long row = index * SOME_ROWS, n = walk->model->hidden, rows = NAME(count)(walk, row);
    TYPE *branch = walk->normed + row * n;
    if (walk->norm->kind != NO_NORM) NAME(norm)(walk->norm, branch, n, branch, n, rows, 1, n);
    NAME(add)(walk->x + row * n, branch, walk->layer->of_sum ? 1.0f : (float)walk->layer->branch, rows * n);
}

/* x += what lies in `normed`, which is written over. */
static void NAME(add_given)(NAME(Walk) *walk, const Norm *after) {
    static const Norm none = {0};
    walk->norm = walk->layer->of_sum ? &none : after;
    NAME(by_rows)(NAME(join_piece), walk);
    if (walk->layer->of_sum) NAME(normed)(walk, after, walk->x);
}

/* x += what a branch gives; writes over `normed`. */
static void NAME(add_branch)(NAME(Walk) *walk, const Weight *weight, const TYPE *from, const Norm *after) {
    const Layer *layer = walk->layer;
    if (layer->of_sum || (after->kind == NO_NORM && layer->branch == 1)) {
        NAME(multiply_adapted)(walk, weight, from, walk->x, walk->x);
        NAME(normed)(walk, after, walk->x);
        return;
    }
    NAME(multiply_adapted)(walk, weight, from, NULL, walk->normed);
    NAME(add_given)(walk, after);
}

static void NAME(scale_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const long row = index * SOME_ROWS, n = walk->model->hidden;
    NAME(scale)(walk->x + row * n, *walk->layer->scalar, walk->x + row * n, NAME(count)(walk, row) * n);
}

/* ----- attention */

INLINE long NAME(width)(const Layer *layer) { return layer->kv_heads * layer->dim; } /* of keys, and of values */

INLINE long NAME(stride)(const Layer *layer) {
    return layer->heads * layer->dim * (layer->gate ? 2 : 1) + (layer->stores ? 2 * NAME(width)(layer) : 0);
}

INLINE void NAME(norm_heads)(const Layer *layer, const Norm *norm, TYPE *x, long rows, long heads, long whole) {
    const long stride = NAME(stride)(layer);
    if (norm->kind == NO_NORM || !heads) return;
    NAME(norm)(norm, x, stride, x, stride, rows, whole ? 1 : heads, whole ? heads * layer->dim : layer->dim);
}

static void NAME(place_piece)(const void *work, long index) { /* bring queries and keys into place, then store keys and values */
    const NAME(Walk) *walk = work;
    const Layer *layer = walk->layer;
    const long row = index * SOME_ROWS, rows = NAME(count)(walk, row), dim = layer->dim, heads = layer->heads;
    const long kv_heads = layer->stores ? layer->kv_heads : 0, width = NAME(width)(layer), stride = NAME(stride)(layer);
    TYPE *queries = walk->wide + row * stride, *keys = queries + heads * dim, *values = keys + width;
    const int64_t *positions = walk->step->positions + walk->start + row;
    const int64_t *places = walk->step->seen[layer->seen].places + walk->start + row;
    if (layer->clip) NAME(clip)(queries, (float)layer->clip, rows * stride);
    for (long after = 0; after < 2; after++) {
        if (layer->norm_after == after) {
            NAME(norm_heads)(layer, &layer->query_norm, queries, rows, heads, layer->norm_whole);
            NAME(norm_heads)(layer, &layer->key_norm, keys, rows, kv_heads, layer->norm_whole);
        }
        for (long r = 0; !after && layer->turn >= 0 && r < rows; r++) {
            const TYPE *table = walk->step->tables[layer->turn];
            NAME(rotate)(queries + r * stride, stride, table + positions[r] * 2 * dim, 1, heads + kv_heads, dim);
        }
    }
    if (!kv_heads) return;
    NAME(norm_heads)(layer, &layer->value_norm, values, rows, kv_heads, 0);
    NAME(store)(keys, stride, places, layer->keys, rows, width, layer->eight, (float)layer->k_scale);
    NAME(store)(values, stride, places, layer->values, rows, width, layer->eight, (float)layer->v_scale);
}

static void NAME(attend_all)(const NAME(Walk) *walk) {
    const Layer *layer = walk->layer;
    const Seen *seen = &walk->step->seen[layer->seen];
    const long start = walk->start;
    Attention job = {walk->wide, layer->keys, layer->values, walk->mixed, seen->slots + start, seen->length + start, seen->before + start,
                     walk->rows, layer->kv_heads, layer->heads / layer->kv_heads, layer->dim, NAME(stride)(layer),
                     (float)(layer->scale * layer->k_scale), (float)layer->softcap, layer->sinks, layer->eight, (float)layer->v_scale};
    NAME(attend)(&job);
}

static void NAME(gate_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const long row = index * SOME_ROWS, rows = NAME(count)(walk, row), n = walk->layer->heads * walk->layer->dim, stride = NAME(stride)(walk->layer);
    for (long r = row; r < row + rows; r++) NAME(gate_row)(walk->mixed + r * n, walk->wide + (r + 1) * stride - n, n);
}

/* ----- the layer */

static void NAME(activate_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const Layer *layer = walk->layer;
    const long row = index * SOME_ROWS, n = layer->inner, rows = NAME(count)(walk, row);
    if (layer->gated) NAME(activate_and_mul)(layer->activation, walk->wide + row * 2 * n, walk->inner + row * n, rows, n);
    else NAME(activate)(layer->activation, walk->wide + row * n, walk->inner + row * n, rows, n);
}

static void NAME(keep)(const NAME(Walk) *walk, TYPE *x, long n) { /* rising, so that nothing is lost */
    for (long i = 0; i < walk->results; i++) memmove(x + i * n, x + (walk->wanted[i] - walk->start) * n, n * sizeof(TYPE));
}

/* From here on only the rows whose logits are wanted. */
static void NAME(keep_wanted)(NAME(Walk) *walk) {
    const long hidden = walk->model->hidden;
    if (walk->wanted) {
        NAME(keep)(walk, walk->x, hidden);
        NAME(keep)(walk, walk->mixed, walk->layer->heads * walk->layer->dim);
        if (walk->layer->parallel) NAME(keep)(walk, walk->normed, hidden);
    }
    walk->rows = walk->results;
    if (walk->wanted && walk->step->adapters) group_rows(&walk->by, walk->step->adapters, walk->wanted, walk->rows);
}

static void NAME(run_dense)(NAME(Walk) *walk, const TYPE *y) {
    const Layer *layer = walk->layer;
    NAME(multiply_adapted)(walk, &layer->up, y, NULL, walk->wide);
    NAME(by_rows)(NAME(activate_piece), walk);
    if (layer->parallel) NAME(add_branch)(walk, &layer->output, walk->mixed, &layer->after_mixer);
    NAME(add_branch)(walk, &layer->down, walk->inner, &layer->after_ffn);
}

static void NAME(run_experts)(NAME(Walk) *walk, const TYPE *y) {
    const Layer *layer = walk->layer;
    NAME(mixture)(layer->experts, y, walk->inner, walk->rows);
    if (layer->parallel) NAME(add_branch)(walk, &layer->output, walk->mixed, &layer->after_mixer);
    memcpy(walk->normed, walk->inner, walk->rows * walk->model->hidden * sizeof(TYPE));
    NAME(add_given)(walk, &layer->after_ffn);
}

/* What the mixer gives its last product, in `mixed`; where no row goes on, only what later tokens need of these. */
static void NAME(run_mixer)(NAME(Walk) *walk, const TYPE *y, int ends) {
    const Layer *layer = walk->layer;
    if (layer->recurrent) {
        NAME(recur)(layer->recurrent, &walk->step->own, y, walk->mixed, walk->rows);
        return;
    }
    NAME(multiply_adapted)(walk, &layer->qkv, y, NULL, walk->wide);
    NAME(by_rows)(NAME(place_piece), walk);
    if (ends) return;
    NAME(attend_all)(walk);
    if (layer->gate) NAME(by_rows)(NAME(gate_piece), walk);
}

static void NAME(run_layer)(NAME(Walk) *walk, int last) {
    const Layer *layer = walk->layer;
    const int ends = last && !walk->results;
    const TYPE *y = walk->x;
    if (layer->mixes) {
        y = NAME(normed)(walk, &layer->before_mixer, walk->normed);
        NAME(run_mixer)(walk, y, ends);
    }
    if (ends) return;
    if (last) NAME(keep_wanted)(walk);
    if (layer->mixes && !layer->parallel) NAME(add_branch)(walk, &layer->output, walk->mixed, &layer->after_mixer);
    if (!layer->parallel || layer->before_ffn.kind != NO_NORM) y = NAME(normed)(walk, &layer->before_ffn, walk->normed);
    if (layer->experts) NAME(run_experts)(walk, y);
    else if (layer->feeds) NAME(run_dense)(walk, y);
    if (layer->scalar) NAME(by_rows)(NAME(scale_piece), walk);
}

static void NAME(embed)(const NAME(Walk) *walk) {
    const Model *model = walk->model;
    const long n = model->hidden;
    for (long row = 0; row < walk->rows; row++) {
        const TYPE *from = (const TYPE *)model->embedding + walk->step->tokens[walk->start + row] * n;
        if (model->embed_scale == 1) memcpy(walk->x + row * n, from, n * sizeof(TYPE));
        else NAME(scale)(from, (float)model->embed_scale, walk->x + row * n, n);
    }
}

/* How many of the step's rows from `wanted` on are before row `end`. */
static long NAME(wanted_before)(const Step *step, const int64_t *wanted, long end) {
    long count = 0;
    while (wanted + count < step->wanted + step->results && wanted[count] < end) count++;
    return count;
}

/* The layers, and the logits of those rows that are wanted; of the results, `done` are there already. */
static void NAME(run_rows)(NAME(Walk) *walk, long done) {
    const Model *model = walk->model;
    const Step *step = walk->step;
    if (step->tokens) NAME(embed)(walk);
    for (long index = step->first; index < step->stop; index++) {
        walk->layer = &model->layer[index];
        NAME(run_layer)(walk, index == model->layers - 1);
    }
    if (!walk->results) return;
    if (step->logits) {
        const TYPE *last = NAME(normed)(walk, &model->norm, walk->normed);
        NAME(multiply)(walk, &model->head, last, NULL, (float *)step->logits + done * model->head.outputs, 1);
    } else if (step->wanted) memmove((TYPE *)step->x + done * model->hidden, walk->x, walk->results * model->hidden * sizeof(TYPE));
}

/* Rows go through all layers some at a time: later ones see what earlier ones have stored.
   space: for each of up to STEP_ROWS rows hidden + wide + mixed numbers, and the most that any layer has inside its feedforward network */
static void NAME(run_step)(const Model *model, const Step *step) {
    const long most = step->rows < STEP_ROWS ? step->rows : STEP_ROWS;
    TYPE *normed = step->space, *wide = normed + most * model->hidden, *mixed = wide + most * model->wide, *inner = mixed + most * model->mixed;
    for (long start = 0, done = 0, some; start < step->rows; start += STEP_ROWS, done += some) {
        const long rows = step->rows - start < STEP_ROWS ? step->rows - start : STEP_ROWS;
        const int64_t *wanted = step->wanted ? step->wanted + done : NULL;
        some = !step->results ? 0 : wanted ? NAME(wanted_before)(step, wanted, start + rows) : rows;
        NAME(Walk) walk = {model, step, NULL, NULL, NULL, NULL, start, rows, wanted, some, (TYPE *)step->x + start * model->hidden, normed, wide, mixed, inner, {0}};
        if (step->adapters) group_rows(&walk.by, step->adapters + start, NULL, rows);
        NAME(run_rows)(&walk, done);
    }
}
