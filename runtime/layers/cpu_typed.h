/* The kernels of cpu.c for one element type: TYPE, with NAME(f) giving f its suffix. */

INLINE void NAME(rms_row)(const TYPE *x, const Norm *norm, long at, TYPE *y, long n) {
    const float *w = norm->weight + at;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += NAME(to_float)(x[i]) * NAME(to_float)(x[i]);
    float scale = 1.0f / sqrtf(sum / n + (float)norm->eps);
#pragma omp simd
    for (long i = 0; i < n; i++) y[i] = NAME(from_float)(NAME(to_float)(x[i]) * scale * w[i]);
}

/* A layer norm, or any norm with a bias. */
INLINE void NAME(layer_row)(const TYPE *x, const Norm *norm, long at, TYPE *y, long n) {
    const float *w = norm->weight + at, *bias = norm->bias;
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += NAME(to_float)(x[i]);
    const float mean = norm->kind == RMS ? 0 : sum / n;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < n; i++) {
        float away = NAME(to_float)(x[i]) - mean;
        squares += away * away;
    }
    const float scale = 1.0f / sqrtf(squares / n + (float)norm->eps);
    if (bias)
#pragma omp simd
        for (long i = 0; i < n; i++) y[i] = NAME(from_float)((NAME(to_float)(x[i]) - mean) * scale * w[i] + bias[at + i]);
    else
#pragma omp simd
        for (long i = 0; i < n; i++) y[i] = NAME(from_float)((NAME(to_float)(x[i]) - mean) * scale * w[i]);
}

/* Each span of n numbers by itself: x [rows, spans, n], rows `stride` apart, to y, rows `to` apart, which may be x. */
CLONES static void NAME(norm)(const Norm *norm, const TYPE *x, long stride, TYPE *y, long to, long rows, long spans, long n) {
    for (long row = 0; row < rows; row++, x += stride, y += to)
        for (long at = 0; at < spans * n; at += n)
            if (norm->kind == RMS && !norm->bias) NAME(rms_row)(x + at, norm, at, y + at, n);
            else NAME(layer_row)(x + at, norm, at, y + at, n);
}

#define ROW(kind) \
    _Pragma("omp simd") for (long i = 0; i < n; i++) y[i] = NAME(from_float)(activated(kind, NAME(to_float)(x[i])))
CLONES static void NAME(activate)(long activation, const TYPE *x, TYPE *y, long rows, long n) {
    for (long row = 0; row < rows; row++, x += n, y += n) { EACH_ACTIVATION(activation, ROW) }
}
#undef ROW

/* The activation of the first half of a row times the second: gate_up [rows, 2 n] -> y [rows, n]. */
#define ROW(kind) \
    _Pragma("omp simd") for (long i = 0; i < n; i++) \
        y[i] = NAME(from_float)(activated(kind, NAME(to_float)(gate_up[i])) * NAME(to_float)(gate_up[n + i]))
CLONES static void NAME(activate_and_mul)(long activation, const TYPE *gate_up, TYPE *y, long rows, long n) {
    for (long row = 0; row < rows; row++, gate_up += 2 * n, y += n) { EACH_ACTIVATION(activation, ROW) }
}
#undef ROW

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

/* x += y * scale */
CLONES static void NAME(add)(TYPE *x, const TYPE *y, float scale, long n) {
#pragma omp simd
    for (long i = 0; i < n; i++) x[i] = NAME(from_float)(NAME(to_float)(x[i]) + NAME(to_float)(y[i]) * scale);
}

CLONES static void NAME(scale)(const TYPE *x, float scale, TYPE *y, long n) {
#pragma omp simd
    for (long i = 0; i < n; i++) y[i] = NAME(from_float)(NAME(to_float)(x[i]) * scale);
}

CLONES static void NAME(clip)(TYPE *x, float most, long n) { /* NaN stays NaN */
#pragma omp simd
    for (long i = 0; i < n; i++) {
        float size = NAME(to_float)(x[i]);
        size = size > most ? most : size;
        x[i] = NAME(from_float)(size < -most ? -most : size);
    }
}

CLONES static void NAME(round_row)(const TYPE *x, float scale, uint8_t *to, long n) {
#pragma omp simd
    for (long i = 0; i < n; i++) to[i] = from_float_e4m3(NAME(to_float)(x[i]) / scale);
}

/* Copy new keys or values x [rows, width], rows `stride` apart, to their slots; divided by `scale` where these have 8 bits. */
static void NAME(store)(const TYPE *x, long stride, const int64_t *slots, void *pool, long rows, long width, long eight, float scale) {
    for (long row = 0; row < rows; row++)
        if (eight) NAME(round_row)(x + row * stride, scale, (uint8_t *)pool + slots[row] * width, width);
        else memcpy((TYPE *)pool + slots[row] * width, x + row * stride, width * sizeof(TYPE));
}
