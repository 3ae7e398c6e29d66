/* y [rows, outputs] = x w^T + bias + residual in bfloat16 for few rows: one pass over the weight, bound by memory.

   Needs AVX512_BF16, whose instruction multiplies 32 pairs exactly and adds them in float32. */

typedef struct {
    const bfloat16 *x, *w, *bias, *residual;
    bfloat16 *y;
    long rows, outputs, inputs, piece; /* outputs of a piece */
} Product;

#if defined(__x86_64__)
#include <immintrin.h>
#define NATIVE __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

static int has_native_bfloat16(void) { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw"); }

NATIVE INLINE __m512bh pairs(const bfloat16 *from, long left) {
    __m512i bits = left >= 32 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((1u << left) - 1, from);
    return (__m512bh)bits;
}

/* `rows` and `outputs` (4 or 1) are constant where this is inlined: the sums stay in registers. */
NATIVE INLINE void dot_block(const Product *job, long output, const long rows, const long outputs) {
    const long n = job->inputs;
    const bfloat16 *x = job->x, *w = job->w + output * n;
    __m512 sums[MOST_ROWS][4];
    for (long r = 0; r < rows; r++)
        for (long o = 0; o < outputs; o++) sums[r][o] = _mm512_setzero_ps();
    for (long i = 0; i < n; i += 32) {
        __m512bh weights[4];
        for (long o = 0; o < outputs; o++) weights[o] = pairs(w + o * n + i, n - i);
        for (long r = 0; r < rows; r++) {
            __m512bh inputs = pairs(x + r * n + i, n - i);
            for (long o = 0; o < outputs; o++) sums[r][o] = _mm512_dpbf16_ps(sums[r][o], inputs, weights[o]);
        }
    }
    for (long r = 0; r < rows; r++)
        for (long o = 0; o < outputs; o++) {
            long place = r * job->outputs + output + o;
            float sum = _mm512_reduce_add_ps(sums[r][o]);
            if (job->bias) sum += to_float_bf16(job->bias[output + o]);
            if (job->residual) sum += to_float_bf16(job->residual[place]);
            job->y[place] = from_float_bf16(sum);
        }
}

NATIVE INLINE void dot_rows(const Product *job, long output, const long outputs) {
    switch (job->rows) {
        case 1: dot_block(job, output, 1, outputs); break;
        case 2: dot_block(job, output, 2, outputs); break;
        case 3: dot_block(job, output, 3, outputs); break;
    }
}

NATIVE static void linear_piece(const void *work, long index) {
    const Product *job = work;
    long output = index * job->piece, end = output + job->piece < job->outputs ? output + job->piece : job->outputs;
    for (; output + 4 <= end; output += 4) dot_rows(job, output, 4);
    for (; output < end; output++) dot_rows(job, output, 1);
}

static void linear(Product job) {
    job.piece = (PIECE / job.inputs + 4) & ~3L;
    share(linear_piece, &job, (job.outputs + job.piece - 1) / job.piece);
}
#else
static int has_native_bfloat16(void) { return 0; }
static void linear(Product job) { (void)job; }
#endif
