/* A whole step of the decoder in one call, phase by phase, for one element type: TYPE, with NAME(f).

   It does what the layers do one by one from Python, and rounds where they round: the numbers are the same bits. */

typedef struct {
    const Model *model;
    const Step *step;
    const Layer *layer;
    const void *norm;             /* weight of the norm that is due */
    long index, rows;             /* of the layer; rows that go on */
    TYPE *x, *normed, *wide, *mixed, *gated; /* [rows, ...]: residual; norms; qkv, then gate and up; attention; their product */
} NAME(Walk);

INLINE long NAME(count)(const NAME(Walk) *walk, long row) {
    return walk->rows - row < SOME_ROWS ? walk->rows - row : SOME_ROWS;
}

static void NAME(norm_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const long row = index * SOME_ROWS, n = walk->model->hidden;
    NAME(rms_norm)(walk->x + row * n, walk->norm, walk->normed + row * n, NAME(count)(walk, row), n, (float)(walk->model->eps * 1e-12));
}

static void NAME(place_piece)(const void *work, long index) { /* rotate queries and keys, then store keys and values */
    const NAME(Walk) *walk = work;
    const Model *model = walk->model;
    const long row = index * SOME_ROWS, rows = NAME(count)(walk, row), dim = model->head_dim;
    const long width = model->kv_heads * dim, stride = model->heads * dim + 2 * width, pool = walk->index * walk->step->slots * width;
    TYPE *qkv = walk->wide + row * stride, *keys = qkv + model->heads * dim;
    const int64_t *positions = walk->step->positions + row, *places = walk->step->places + row;
    if (walk->layer->head_norm) NAME(norm_heads)(qkv, stride, walk->layer->head_norm, rows, model->heads + model->kv_heads, dim, (float)(model->eps * 1e-12));
    for (long r = 0; r < rows; r++)
        NAME(rotate)(qkv + r * stride, stride, (const TYPE *)walk->step->angles + positions[r] * 2 * dim, 1, model->heads + model->kv_heads, dim);
    NAME(store)(keys, stride, places, (TYPE *)walk->step->keys + pool, rows, width);
    NAME(store)(keys + width, stride, places, (TYPE *)walk->step->values + pool, rows, width);
}

static void NAME(gate_piece)(const void *work, long index) {
    const NAME(Walk) *walk = work;
    const long row = index * SOME_ROWS, n = walk->model->inner;
    NAME(silu_and_mul)(walk->wide + row * 2 * n, walk->gated + row * n, NAME(count)(walk, row), n);
}

static void NAME(by_rows)(Piece run, const NAME(Walk) *walk) { share(run, walk, ceiling(walk->rows, SOME_ROWS)); }

static void NAME(multiply)(const NAME(Walk) *walk, const Weight *weight, const TYPE *x, const TYPE *residual, void *y, int wide) {
    Product job = {weight, x, residual, y, walk->rows, wide};
    product(&job);
}

static void NAME(normalise)(NAME(Walk) *walk, const void *norm) {
    walk->norm = norm;
    NAME(by_rows)(NAME(norm_piece), walk);
}

static void NAME(attend_all)(const NAME(Walk) *walk) {
    const Model *model = walk->model;
    const Step *step = walk->step;
    const long dim = model->head_dim, width = model->kv_heads * dim, pool = walk->index * step->slots * width;
    const Seen *seen = &step->seen[step->windows[walk->index]];
    Attention job = {walk->wide, (const TYPE *)step->keys + pool, (const TYPE *)step->values + pool, walk->mixed, seen->slots, seen->length,
                     walk->rows, model->kv_heads, model->heads / model->kv_heads, dim, (model->heads + 2 * model->kv_heads) * dim,
                     (float)(1.0 / sqrt((double)dim))};
    NAME(attend)(&job);
}

/* From here on only the rows whose logits are wanted. */
static void NAME(keep_wanted)(NAME(Walk) *walk) {
    const Step *step = walk->step;
    const long mixed = walk->model->heads * walk->model->head_dim, hidden = walk->model->hidden;
    if (step->wanted) /* in rising order, so that nothing is overwritten that is still to come */
        for (long i = 0; i < step->results; i++) {
            memmove(walk->x + i * hidden, walk->x + step->wanted[i] * hidden, hidden * sizeof(TYPE));
            memmove(walk->mixed + i * mixed, walk->mixed + step->wanted[i] * mixed, mixed * sizeof(TYPE));
        }
    walk->rows = step->results;
}

static void NAME(run_layer)(NAME(Walk) *walk) {
    const Layer *layer = walk->layer;
    NAME(normalise)(walk, layer->attention_norm);
    NAME(multiply)(walk, &layer->qkv, walk->normed, NULL, walk->wide, 0);
    NAME(by_rows)(NAME(place_piece), walk);
    const int last = walk->index == walk->model->layers - 1;
    if (last && !walk->step->results) return; /* only keys and values are wanted */
    NAME(attend_all)(walk);
    if (last) NAME(keep_wanted)(walk);
    NAME(multiply)(walk, &layer->output, walk->mixed, walk->x, walk->x, 0);
    NAME(normalise)(walk, layer->mlp_norm);
    NAME(multiply)(walk, &layer->gate_up, walk->normed, NULL, walk->wide, 0);
    NAME(by_rows)(NAME(gate_piece), walk);
    NAME(multiply)(walk, &layer->down, walk->gated, walk->x, walk->x, 0);
}

static void NAME(run_step)(const Model *model, const Step *step) {
    const long rows = step->rows, hidden = model->hidden, dim = model->head_dim, mixed = model->heads * dim;
    const long qkv = mixed + 2 * model->kv_heads * dim, both = 2 * model->inner;
    TYPE *x = step->space, *normed = x + rows * hidden, *wide = normed + rows * hidden;
    TYPE *attended = wide + rows * (qkv > both ? qkv : both), *gated = attended + rows * mixed;
    NAME(Walk) walk = {model, step, NULL, NULL, 0, rows, x, normed, wide, attended, gated};
    for (long row = 0; row < rows; row++)
        memcpy(x + row * hidden, (const TYPE *)model->embedding + step->tokens[row] * hidden, hidden * sizeof(TYPE));
    for (; walk.index < model->layers; walk.index++) {
        walk.layer = &model->layer[walk.index];
        NAME(run_layer)(&walk);
    }
    if (!step->results) return;
    NAME(normalise)(&walk, model->norm);
    NAME(multiply)(&walk, &model->head, normed, NULL, step->logits, 1);
}
