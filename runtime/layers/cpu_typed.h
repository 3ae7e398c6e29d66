/* The kernels of cpu.c for one element type: TYPE, with NAME(f) giving f its suffix. */

CLONES static void NAME(rms_norm)(const TYPE *x, const float *w, TYPE *y, long rows, long n, float eps) {
    for (long row = 0; row < rows; row++, x += n, y += n) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < n; i++) sum += NAME(to_float)(x[i]) * NAME(to_float)(x[i]);
        float scale = 1.0f / sqrtf(sum / n + eps);
#pragma omp simd
        for (long i = 0; i < n; i++) y[i] = NAME(from_float)(NAME(to_float)(x[i]) * scale * w[i]);
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

/* Heads x [rows, heads, dim], rows `stride` apart, normed one by one in place; w [heads, dim]. */
CLONES static void NAME(norm_heads)(TYPE *x, long stride, const float *w, long rows, long heads, long dim, float eps) {
    for (long row = 0; row < rows; row++)
        for (long head = 0; head < heads; head++) {
            TYPE *at = x + row * stride + head * dim;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long i = 0; i < dim; i++) sum += NAME(to_float)(at[i]) * NAME(to_float)(at[i]);
            float scale = 1.0f / sqrtf(sum / dim + eps);
#pragma omp simd
            for (long i = 0; i < dim; i++) at[i] = NAME(from_float)(NAME(to_float)(at[i]) * scale * w[head * dim + i]);
        }
}

/* Copy new keys or values x [rows, width], rows `stride` apart, to their slots. */
static void NAME(store)(const TYPE *x, long stride, const int64_t *slots, TYPE *pool, long rows, long width) {
    for (long row = 0; row < rows; row++) memcpy(pool + slots[row] * width, x + row * stride, width * sizeof(TYPE));
}
