/* Layers that carry a state along with each sequence, token after token: the same bits however a sequence is cut.

   Sequences lie end to end; sequence s has the rows starts[s] to starts[s + 1] - 1. Its state is read from slot read[s] and left in
   slot write[s], which may be the same; no other sequence of the call may read what it writes. Nothing is left in slot NOWHERE. */

enum { NOWHERE = 1, MOST_KEYS = 256, COLUMNS = 32, NUMBERS = 4096 }; /* as SCRAP_SLOT in cache/states.py */
enum { NO_GATE = -1, SIGMOID = RELU2 + 1 };

typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias)); /* 16 numbers */
#define AT(p) (*(Lanes *)(p))


/* ----- what tokens say of decays */

typedef struct { /* steps = softplus(x + bias), at least `least` and at most `most`; decay = steps * rate */
    const void *x;                  /* [rows, heads * each], rows `stride` apart */
    int64_t stride, rows, heads, each;
    const float *bias, *rate;       /* [heads * each]; [heads]; or 0 */
    float *steps, *decay;           /* [rows, heads * each], or 0 */
    double least, most;
    const void *b;                  /* [rows, heads], rows `b_stride` apart, or 0 */
    int64_t b_stride;
    float *beta;                    /* [rows, heads]: reach * sigmoid(b) */
    double reach;
} Rates;

INLINE float softplus(float x) { /* relative error below 4e-7 */
    const float small = exponential(-fabsf(x)), s = small / (2.0f + small), square = s * s;
    float p = 1.0f / 13;
    p = p * square + 1.0f / 11;
    p = p * square + 1.0f / 9;
    p = p * square + 1.0f / 7;
    p = p * square + 1.0f / 5;
    p = p * square + 1.0f / 3;
    p = p * square + 1.0f;
    return (x > 0 ? x : 0) + 2.0f * s * p;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(x < -87.0f ? 87.0f : -x)); }

/* ----- linear attention whose state decays: see layers/recurrent/linear.py */

typedef struct {
    const float *q, *k, *v;         /* [rows, heads / shared, key] of each, and [rows, heads, value]; rows `stride` apart */
    int64_t stride;
    const float *decay, *beta;      /* [rows, heads], or decays [rows, heads, key]; beta 0: without the delta rule */
    const float *times, *skip;      /* [rows, heads] that values are multiplied with; [heads] what of a value goes past the states; or 0 */
    float *memory, *out;            /* [slots, heads, key, value]; [rows, heads, value] */
    Sequences own;
    int64_t heads, shared, key, value, channels; /* channels: decays [rows, heads, key] */
    double scale, unit;             /* of queries; queries and keys are brought to length 1, this is added to its square; below 0: they are not */
} Linear;

typedef struct { /* what a token says to a head */
    float q[MOST_KEYS], k[MOST_KEYS], kept[MOST_KEYS];
} Said;

INLINE void say(const Linear *job, long row, long head, Said *said) {
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
    for (long i = 0; i < key; i++) said->q[i] = job->q[from + i] * q, said->k[i] = job->k[from + i] * k;
    if (job->channels) {
#pragma omp simd
        for (long i = 0; i < key; i++) said->kept[i] = exponential(job->decay[own * key + i]);
    } else {
        const float kept = exponential(job->decay[own]);
        for (long i = 0; i < key; i++) said->kept[i] = kept;
    }
}

/* One token for COLUMNS columns of a head's state: u [COLUMNS] is the value. Rows of the state are from_step and to_step apart. */
INLINE void advance_columns(const Said *said, long key, int delta, float beta, const float *from, long from_step, float *to, long to_step,
                            const float *value, float *out) {
    Lanes a = {0}, b = {0}, c = {0}, d = {0}, u = AT(value), w = AT(value + LANES);
    if (delta) {
        for (long i = 0; i + 1 < key; i += 2) {
            const float one = said->k[i] * said->kept[i], two = said->k[i + 1] * said->kept[i + 1];
            const float *row = from + i * from_step, *next = row + from_step;
            a += one * AT(row), b += one * AT(row + LANES), c += two * AT(next), d += two * AT(next + LANES);
        }
        if (key % 2) {
            const float one = said->k[key - 1] * said->kept[key - 1], *row = from + (key - 1) * from_step;
            a += one * AT(row), b += one * AT(row + LANES);
        }
        u = (u - (a + c)) * beta, w = (w - (b + d)) * beta;
    }
    Lanes low = {0}, high = {0};
    for (long i = 0; i < key; i++) {
        const float *row = from + i * from_step;
        float *there = to + i * to_step;
        const Lanes s = AT(row) * said->kept[i] + said->k[i] * u, t = AT(row + LANES) * said->kept[i] + said->k[i] * w;
        AT(there) = s, AT(there + LANES) = t;
        low += said->q[i] * s, high += said->q[i] * t;
    }
    AT(out) = low, AT(out + LANES) = high;
}

INLINE void advance_token(const Linear *job, const Said *said, long row, long head, long at, long count, const float *from, long from_step,
                          float *to, long to_step) {
    const long own = row * job->heads + head;
    const float *v = job->v + row * job->stride + head * job->value + at, times = job->times ? job->times[own] : 1.0f;
    const float beta = job->beta ? job->beta[own] : 0.0f, past = job->skip ? job->skip[head] : 0.0f;
    float value[COLUMNS] = {0}, seen[COLUMNS], *out = job->out + own * job->value + at;
    for (long j = 0; j < count; j++) value[j] = v[j] * times;
    advance_columns(said, job->key, job->beta != NULL, beta, from, from_step, to, to_step, value, seen);
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
    Said said;
    if (few) {
        memset(passing, 0, job->key * COLUMNS * sizeof(float));
        copy_columns(from, from_step, passing, COLUMNS, job->key, count);
        from = passing, from_step = COLUMNS;
    }
    for (long row = first; row <= last; row++) {
        const int ends = row == last && kept && !few;
        float *to = ends ? kept : passing;
        const long to_step = ends ? job->value : COLUMNS;
        say(job, row, head, &said);
        advance_token(job, &said, row, head, at, count, from, from_step, to, to_step);
        from = to, from_step = to_step;
    }
    if (few && kept) copy_columns(passing, COLUMNS, kept, job->value, job->key, count);
}

static void advance(const Linear *job) { share(advance_piece, job, job->own.count * job->heads * ceiling(job->value, COLUMNS)); }

/* ----- the selective scan: see layers/recurrent/selective.py */

typedef struct {
    const float *x, *dt, *a, *b, *c, *skip; /* [rows, channels] both; [channels, size]; [rows, size] both; [channels] */
    float *memory, *out;                    /* [slots, channels, size]; [rows, channels] */
    Sequences own;
    int64_t channels, size;
} Selective;

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

static void selective(const Selective *job) { share(select_piece, job, job->own.count * ceiling(job->channels, select_block(job))); }

/* ----- the convolution in front, and the gate behind */

typedef struct { /* see layers/recurrent/convolution.py */
    const void *x;               /* [rows, channels], rows `stride` apart */
    int64_t stride;
    const float *kernel, *bias;  /* [width, channels]; [channels] or 0 */
    void *memory;                /* [slots, width - 1, channels] */
    float *out;                  /* [rows, channels] */
    Sequences own;
    int64_t channels, width, activation; /* NO_GATE: none */
} Convolve;

typedef struct { /* each span of n numbers of a row is divided by its root mean square, times `weight` and an activation of z */
    const float *x, *weight;     /* [rows, spans * n]; [n] for every span, or [spans * n] where it is `apart` */
    const void *z;               /* [rows, spans * n], rows `stride` apart */
    void *out;                   /* [rows, spans * n] */
    int64_t stride, rows, spans, n, apart, gate, gate_first; /* gate_first: the norm is that of the gated numbers */
    double eps;                  /* below 0: no norm */
} GatedNorm;
