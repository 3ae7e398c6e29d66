/* The kernels of cpu.c for one element type: TYPE, with NAME(f) giving f its suffix. */

INLINE float NAME(dot)(const float *x, const TYPE *y, long n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += x[i] * NAME(to_float)(y[i]);
    return sum;
}

CLONES static void NAME(rms_norm)(const TYPE *x, const TYPE *w, TYPE *y, long rows, long n, float eps) {
    for (long row = 0; row < rows; row++, x += n, y += n) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < n; i++) sum += NAME(to_float)(x[i]) * NAME(to_float)(x[i]);
        float scale = 1.0f / sqrtf(sum / n + eps);
#pragma omp simd
        for (long i = 0; i < n; i++) y[i] = NAME(from_float)(NAME(to_float)(x[i]) * scale * NAME(to_float)(w[i]));
    }
}

CLONES static void NAME(silu_and_mul)(const TYPE *gate_up, TYPE *y, long rows, long n) {
    for (long row = 0; row < rows; row++, gate_up += 2 * n, y += n) {
#pragma omp simd
        for (long i = 0; i < n; i++) {
            float gate = NAME(to_float)(gate_up[i]), down = gate < -87.0f ? -87.0f : gate;
            y[i] = NAME(from_float)(gate / (1.0f + exponential(-down)) * NAME(to_float)(gate_up[n + i]));
        }
    }
}

CLONES static void NAME(rotate)(TYPE *x, long stride, const TYPE *table, long rows, long heads, long dim) {
    long half = dim / 2;
    for (long row = 0; row < rows; row++, table += 4 * half) {
        for (long head = 0; head < heads; head++) {
            TYPE *low = x + row * stride + head * dim, *high = low + half;
#pragma omp simd
            for (long i = 0; i < half; i++) {
                float a = NAME(to_float)(low[i]), b = NAME(to_float)(high[i]);
                float cosine = NAME(to_float)(table[i]), sine = NAME(to_float)(table[3 * half + i]);
                low[i] = NAME(from_float)(a * cosine - b * sine);
                high[i] = NAME(from_float)(b * cosine + a * sine);
            }
        }
    }
}

/* One query row, one KV head, up to QUERIES of its query heads: online softmax over blocks of KEYS tokens. */
INLINE void NAME(attend_head)(const Attention *job, long row, long head, long from, long queries, long dim) {
    const TYPE *q = (const TYPE *)job->q + row * job->q_stride + (head * job->group + from) * dim;
    const TYPE *keys = (const TYPE *)job->keys + head * dim, *values = (const TYPE *)job->values + head * dim;
    const int32_t *slots = job->slots + job->first[row];
    const long length = job->length[row], token = job->kv_heads * dim;
    float query[QUERIES * MOST_DIM], mixed[QUERIES * MOST_DIM], wide[MOST_DIM];
    float score[QUERIES][KEYS], most[QUERIES], total[QUERIES];

    for (long i = 0; i < queries * dim; i++) query[i] = NAME(to_float)(q[i]) * job->scale, mixed[i] = 0;
    for (long g = 0; g < queries; g++) most[g] = -INFINITY, total[g] = 0;
    for (long begin = 0; begin < length; begin += KEYS) {
        long count = length - begin < KEYS ? length - begin : KEYS;
        for (long j = 0; j < count; j++) {
            const TYPE *key = keys + slots[begin + j] * token;
            prefetch(keys + slots[begin + j + AHEAD < length ? begin + j + AHEAD : length - 1] * token, dim * sizeof(TYPE));
            prefetch(values + slots[begin + j] * token, dim * sizeof(TYPE));
            for (long i = 0; i < dim; i++) wide[i] = NAME(to_float)(key[i]);
            for (long g = 0; g < queries; g++) score[g][j] = dot_f32(query + g * dim, wide, dim);
        }
        for (long g = 0; g < queries; g++) {
            float top = most[g], sum = 0;
#pragma omp simd reduction(max : top)
            for (long j = 0; j < count; j++) top = score[g][j] > top ? score[g][j] : top;
            float keep = begin ? exponential(most[g] - top) : 0.0f;
#pragma omp simd reduction(+ : sum)
            for (long j = 0; j < count; j++) sum += score[g][j] = exponential(score[g][j] - top);
            total[g] = total[g] * keep + sum;
            most[g] = top;
            for (long i = 0; i < dim; i++) mixed[g * dim + i] *= keep;
        }
        for (long j = 0; j < count; j++) {
            const TYPE *value = values + slots[begin + j] * token;
            for (long i = 0; i < dim; i++) wide[i] = NAME(to_float)(value[i]);
            for (long g = 0; g < queries; g++) {
                float weight = score[g][j];
#pragma omp simd
                for (long i = 0; i < dim; i++) mixed[g * dim + i] += weight * wide[i];
            }
        }
    }
    TYPE *out = (TYPE *)job->out + ((row * job->kv_heads + head) * job->group + from) * dim;
    for (long g = 0; g < queries; g++) {
        float share = 1.0f / total[g];
        for (long i = 0; i < dim; i++) out[g * dim + i] = NAME(from_float)(mixed[g * dim + i] * share);
    }
}

CLONES static void NAME(attend_piece)(const void *work, long index) {
    const Attention *job = work;
    long row = index / job->kv_heads, head = index % job->kv_heads;
    for (long from = 0; from < job->group; from += QUERIES) {
        long queries = job->group - from < QUERIES ? job->group - from : QUERIES;
        if (job->dim == 64 && queries == 3)
            NAME(attend_head)(job, row, head, from, 3, 64);
        else if (job->dim == 64)
            NAME(attend_head)(job, row, head, from, queries, 64);
        else if (job->dim == 128)
            NAME(attend_head)(job, row, head, from, queries, 128);
        else
            NAME(attend_head)(job, row, head, from, queries, job->dim);
    }
}

static void NAME(attend)(const Attention *job) { share(NAME(attend_piece), job, job->rows * job->kv_heads); }

/* Copy new keys or values x [rows, width], rows `stride` apart, to their slots. */
static void NAME(store)(const TYPE *x, long stride, const int64_t *slots, TYPE *pool, long rows, long width) {
    for (long row = 0; row < rows; row++) memcpy(pool + slots[row] * width, x + row * stride, width * sizeof(TYPE));
}
