/* The same of bfloat16 by AVX512_BF16: exact products of pairs, added in float32. */

#if defined(__x86_64__)

WIDE_bf16 INLINE __m512 wide_of(const bfloat16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16));
}

WIDE_bf16 static void shrink_wide(const Pair *pair, long piece, const bfloat16 *x, float *h) {
    const float scale = pair->scales[piece];
    const long n = pair->inputs;
    for (long r = 0; r < pair->rank; r += 4) {
        const bfloat16 *a = (const bfloat16 *)pair->a + (piece * pair->rank + r) * n;
        __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (long i = 0; i < n; i += 2 * LANES) {
            const __mmask32 mask = n - i < 2 * LANES ? ((__mmask32)1 << (n - i)) - 1 : (__mmask32)-1;
            const __m512bh inputs = (__m512bh)_mm512_maskz_loadu_epi16(mask, x + i);
#pragma GCC unroll 4
            for (long k = 0; k < 4; k++) add_products(&sums[k], (__m512bh)_mm512_maskz_loadu_epi16(mask, a + k * n + i), inputs);
        }
#pragma GCC unroll 4
        for (long k = 0; k < 4; k++) h[r + k] = _mm512_reduce_add_ps(sums[k]) * scale;
    }
}

/* Outputs by 128, whose sums the registers hold. */
WIDE_bf16 static long expand_wide(const Pair *pair, const float *h, long start, long stop, bfloat16 *y) {
    enum { MANY = 8 };
    long o = start;
    for (; o + MANY * LANES <= stop; o += MANY * LANES) {
        __m512 sums[MANY];
        const bfloat16 *b = (const bfloat16 *)pair->b + o;
#pragma GCC unroll 8
        for (long k = 0; k < MANY; k++) sums[k] = _mm512_setzero_ps();
        for (long r = 0; r < pair->rank; r++, b += pair->outputs) {
            const __m512 factor = _mm512_set1_ps(h[r]);
#pragma GCC unroll 8
            for (long k = 0; k < MANY; k++) sums[k] = _mm512_fmadd_ps(wide_of(b + k * LANES), factor, sums[k]);
        }
#pragma GCC unroll 8
        for (long k = 0; k < MANY; k++)
            _mm256_storeu_si256((void *)(y + o + k * LANES), (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(sums[k], wide_of(y + o + k * LANES))));
    }
    return o;
}
#else
static void shrink_wide(const Pair *pair, long piece, const bfloat16 *x, float *h) { (void)pair, (void)piece, (void)x, (void)h; }
static long expand_wide(const Pair *pair, const float *h, long start, long stop, bfloat16 *y) { (void)pair, (void)h, (void)stop, (void)y; return start; }
#endif
