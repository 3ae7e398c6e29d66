/* Layers that carry a state along: linear attention whose state decays, and the selective scan. See recurrent_layers.h. */

#include "../base/thread_pool.h"
#include "recurrent_layers.h"

typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias)); /* 16 numbers */
#define AT(p) (*(Lanes *)(p))

/* ----- linear attention */

typedef struct { /* a token's query, key and decay for a head */
    float q[MOST_KEYS], k[MOST_KEYS], kept[MOST_KEYS];
} TokenVectors;

INLINE void load_token(const Linear *job, long row, long head, TokenVectors *token) {
    const long key = job->key, from = row * job->stride + head / job->shared * key, own = row * job->heads + head;
    float q = 0, k = 0;
    if (job->unit >= 0) {
#pragma omp simd reduction(+ : q, k)
        for (long i = 0; i < key; i++) q += job->q[from + i] * job->q[from + i], k += job->k[from + i] * job->k[from + i];
        q = 1.0f / sqrtf(q + (float)job->unit), k = 1.0f / sqrtf(k + (float)job->unit);
    } else
        q = k = 1.0f;
    q *= (float)job->scale;
#pragma omp simd
    for (long i = 0; i < key; i++) token->q[i] = job->q[from + i] * q, token->k[i] = job->k[from + i] * k;
    if (job->channels) {
#pragma omp simd
        for (long i = 0; i < key; i++) token->kept[i] = exponential(job->decay[own * key + i]);
    } else {
        const float kept = exponential(job->decay[own]);
        for (long i = 0; i < key; i++) token->kept[i] = kept;
    }
}

/* One token for COLUMNS columns of a head's state: u [COLUMNS] is the value. Rows of the state are from_step and to_step apart. */
INLINE void advance_columns(const TokenVectors *token, long key, int delta, float beta, const float *from, long from_step, float *to, long to_step,
                            const float *value, float *out) {
    Lanes a = {0}, b = {0}, c = {0}, d = {0}, u = AT(value), w = AT(value + LANES);
    if (delta) {
        for (long i = 0; i + 1 < key; i += 2) {
            const float one = token->k[i] * token->kept[i], two = token->k[i + 1] * token->kept[i + 1];
            const float *row = from + i * from_step, *next = row + from_step;
            a += one * AT(row), b += one * AT(row + LANES), c += two * AT(next), d += two * AT(next + LANES);
        }
        if (key % 2) {
            const float one = token->k[key - 1] * token->kept[key - 1], *row = from + (key - 1) * from_step;
            a += one * AT(row), b += one * AT(row + LANES);
        }
        u = (u - (a + c)) * beta, w = (w - (b + d)) * beta;
    }
    Lanes low = {0}, high = {0};
    for (long i = 0; i < key; i++) {
        const float *row = from + i * from_step;
        float *there = to + i * to_step;
        const Lanes s = AT(row) * token->kept[i] + token->k[i] * u, t = AT(row + LANES) * token->kept[i] + token->k[i] * w;
        AT(there) = s, AT(there + LANES) = t;
        low += token->q[i] * s, high += token->q[i] * t;
    }
    AT(out) = low, AT(out + LANES) = high;
}

INLINE void advance_token(const Linear *job, const TokenVectors *token, long row, long head, long at, long count, const float *from, long from_step,
                          float *to, long to_step) {
    const long own = row * job->heads + head;
    const float *v = job->v + row * job->stride + head * job->value + at, times = job->times ? job->times[own] : 1.0f;
    const float beta = job->beta ? job->beta[own] : 0.0f, past = job->skip ? job->skip[head] : 0.0f;
    float value[COLUMNS] = {0}, seen[COLUMNS], *out = job->out + own * job->value + at;
    for (long j = 0; j < count; j++) value[j] = v[j] * times;
    advance_columns(token, job->key, job->beta != NULL, beta, from, from_step, to, to_step, value, seen);
    for (long j = 0; j < count; j++) out[j] = job->skip ? seen[j] + past * v[j] : seen[j];
}

INLINE void copy_columns(const float *from, long from_step, float *to, long to_step, long rows, long count) {
    for (long i = 0; i < rows; i++) memcpy(to + i * to_step, from + i * from_step, count * sizeof(float));
}

CLONES static void advance_piece(const void *work, long index) { /* some columns of a head of a sequence */
    const Linear *job = work;
    const long blocks = ceiling(job->value, COLUMNS), sequence = index / (job->heads * blocks), head = index / blocks % job->heads;
    const long at = index % blocks * COLUMNS, left = job->value - at, count = left < COLUMNS ? left : COLUMNS, size = job->key * job->value;
    const long target = job->own.write[sequence], first = job->own.starts[sequence], last = job->own.starts[sequence + 1] - 1;
    const float *from = job->memory + (job->own.read[sequence] * job->heads + head) * size + at;
    float *kept = target == NOWHERE ? NULL : job->memory + (target * job->heads + head) * size + at;
    long from_step = job->value;
    const int few = count < COLUMNS; /* these pass through memory with room for all, so that every column is computed alike */
    float passing[MOST_KEYS * COLUMNS];
    TokenVectors token;
    if (few) {
        memset(passing, 0, job->key * COLUMNS * sizeof(float));
        copy_columns(from, from_step, passing, COLUMNS, job->key, count);
        from = passing, from_step = COLUMNS;
    }
    for (long row = first; row <= last; row++) {
        const int ends = row == last && kept && !few;
        float *to = ends ? kept : passing;
        const long to_step = ends ? job->value : COLUMNS;
        load_token(job, row, head, &token);
        advance_token(job, &token, row, head, at, count, from, from_step, to, to_step);
        from = to, from_step = to_step;
    }
    if (few && kept) copy_columns(passing, COLUMNS, kept, job->value, job->key, count);
}

INTERNAL void advance(const Linear *job) { share(advance_piece, job, job->own.count * job->heads * ceiling(job->value, COLUMNS)); }

/* ----- the selective scan */

INLINE float select_channel(const float *rate, const float *b, const float *c, float dt, float given, const float *from, float *to, const long size) {
    float seen = 0;
#pragma omp simd reduction(+ : seen)
    for (long n = 0; n < size; n++) {
        const float state = from[n] * exponential(dt * rate[n]) + given * b[n];
        to[n] = state, seen += state * c[n];
    }
    return seen;
}

INLINE void select_token(const Selective *job, long row, long at, long count, const float *from, float *to, const long size) {
    const float *b = job->b + row * size, *c = job->c + row * size;
    for (long i = 0; i < count; i++) {
        const long place = row * job->channels + at + i;
        const float x = job->x[place], dt = job->dt[place];
        job->out[place] = select_channel(job->a + (at + i) * size, b, c, dt, dt * x, from + i * size, to + i * size, size) + x * job->skip[at + i];
    }
}

INLINE long select_block(const Selective *job) { return job->size > NUMBERS ? 1 : NUMBERS / job->size; } /* channels of a piece */

CLONES static void select_piece(const void *work, long index) { /* some channels of a sequence */
    const Selective *job = work;
    const long block = select_block(job), blocks = ceiling(job->channels, block), sequence = index / blocks, at = index % blocks * block;
    const long left = job->channels - at, count = left < block ? left : block, size = job->size;
    const long target = job->own.write[sequence], first = job->own.starts[sequence], last = job->own.starts[sequence + 1] - 1;
    const float *from = job->memory + (job->own.read[sequence] * job->channels + at) * size;
    float passing[NUMBERS];
    for (long row = first; row <= last; row++) {
        float *to = row == last && target != NOWHERE ? job->memory + (target * job->channels + at) * size : passing;
        if (size == 16) select_token(job, row, at, count, from, to, 16);
        else select_token(job, row, at, count, from, to, size);
        from = to;
    }
}

INTERNAL void selective(const Selective *job) { share(select_piece, job, job->own.count * ceiling(job->channels, select_block(job))); }
