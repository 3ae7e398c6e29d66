/* Products with weights of small floats in groups of inputs:

       w[o][i] = v(code[o][i]) * scale[o][g] * factor[o]

   A code of four bits is an entry of a table of 16 floats, one of eight bits is a float8 (e4m3). x is multiplied as it
   is, in float32. The even and the odd inputs of a group have a sum each, in order; the two are added, then the groups in
   their order: a row's bits do not depend on the others, nor on which instruction set computes them. Where AVX512_BF16 is,
   float8 and bfloat16 are multiplied by float8_bf16_gemm.c.

   A block of 32 outputs, `stride` bytes, is
       scales [groups] [32], float32 or float16; of float8 those times 2^8: its bits moved to a float16's give 2^-8 of it
       codes  of four bits  [inputs / 2] [32]: the first input in the low half
              of eight bits [inputs] [32]
   Inputs are filled up to an even number, as groups have; outputs to a whole block. */

#include "../base/cpu_isa.h"
#include "../base/thread_scratch.h"
#include "small_float_gemm.h"
#include "quantized_groups_avx2.h"
#include "quantized_groups_vnni.h"
#include "quantized_gemm.h"

#define WIDENED(type, suffix) \
    CLONES static void widen_##suffix(const type *x, const int32_t *order, long n, float *y) { \
        if (order) \
            for (long i = 0; i < n; i++) y[i] = to_float_##suffix(x[order[i]]); \
        else \
            _Pragma("omp simd") for (long i = 0; i < n; i++) y[i] = to_float_##suffix(x[i]); \
        if (n & 1) y[n] = 0; \
    }
WIDENED(float, f32)
WIDENED(bfloat16, bf16)
#undef WIDENED

static void put_in_order(const bfloat16 *x, const int32_t *order, long n, bfloat16 *y) {
    if (order)
        for (long i = 0; i < n; i++) y[i] = x[order[i]];
    else memcpy(y, x, n * sizeof(bfloat16));
    if (n & 1) y[n] = 0;
}

typedef struct {
    const Product *from;
    void *rows; /* float32, or with `pairs` bfloat16, each row in the order of the columns and filled up to an even number */
    int pairs;
} Widening;

static void widen_piece(const void *work, long index) {
    const Widening *job = work;
    const Product *from = job->from;
    const long n = from->weight->inputs, first = index * SOME_ROWS;
    const long end = first + SOME_ROWS < from->rows ? first + SOME_ROWS : from->rows;
    for (long row = first; row < end; row++) {
        const int32_t *order = grouping(from)->order;
        float *to = (float *)job->rows + row * even(n);
        if (job->pairs) put_in_order((const bfloat16 *)from->x + row * n, order, n, (bfloat16 *)job->rows + row * even(n));
        else if (in_bfloat16(from->weight)) widen_bf16((const bfloat16 *)from->x + row * n, order, n, to);
        else widen_f32((const float *)from->x + row * n, order, n, to);
    }
}

/* ----- generic */

INLINE float value_generic(const Grouping *g, const uint8_t *codes, long i) {
    const uint8_t code = g->bits == 8 ? codes[i * BLOCK] : codes[i / 2 * BLOCK] >> i % 2 * 4 & 15;
    return g->bits == 8 ? half_to_float((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7)) : ((const float *)g->table)[code];
}

static float float_sum_generic(const Product *job, const char *block, long o, const float *x) {
    const Grouping *g = grouping(job);
    const long n = even(job->weight->inputs);
    const uint8_t *codes = (const uint8_t *)block + g->codes + o;
    float total = 0;
    for (long from = 0, place = o; from < n; from += g->group, place += BLOCK) {
        const long end = from + g->group < n ? from + g->group : n;
        float sums[2] = {0, 0};
        for (long i = from; i < end; i++) sums[i % 2] = fmaf(value_generic(g, codes, i), x[i], sums[i % 2]);
        total = fmaf(sums[0] + sums[1], scale_at(g, block, place), total);
    }
    return total;
}

static void blocks_float_generic(const Product *job, long row, long rows, long block, long end) {
    float totals[MOST_AT_ONCE * BLOCK];
    for (; block < end; block++) {
        const char *at = (const char *)job->weight->data + block * grouping(job)->stride;
        for (long r = 0; r < rows; r++)
            for (long o = 0; o < BLOCK; o++) totals[r * BLOCK + o] = float_sum_generic(job, at, o, wide_row(job, row + r));
        finish_groups(job, row, rows, block, totals);
    }
}

#if defined(__x86_64__)

/* ----- by AVX2 */

AVX2 INLINE __m256 float8_avx2(const uint8_t *at) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)at));
    const __m128i sign = _mm_and_si128(_mm_slli_epi16(wide, 8), _mm_set1_epi16((short)0x8000));
    return _mm256_cvtph_ps(_mm_or_si128(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(0x3f80)), sign));
}

AVX2 INLINE __m256 entry_avx2(const float *table, __m256i codes) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), codes), high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}

/* Weights of an even input and the next. */
AVX2 INLINE void two_avx2(const Grouping *g, const uint8_t *codes, long i, __m256 two[2], const int bits) {
    if (bits == 8) {
        two[0] = float8_avx2(codes + i * BLOCK), two[1] = float8_avx2(codes + (i + 1) * BLOCK);
    } else {
        const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(codes + i / 2 * BLOCK)));
        two[0] = entry_avx2(g->table, both), two[1] = entry_avx2(g->table, _mm256_srli_epi32(both, 4));
    }
}

/* Some rows by 8 outputs, to totals [rows][BLOCK]. lane: of the outputs in their block. */
AVX2 INLINE void float_sums_avx2(const Product *job, long row, const char *block, long lane, float *totals, const long rows, const int bits) {
    const Grouping *g = grouping(job);
    const long n = even(job->weight->inputs);
    const float *x = wide_row(job, row);
    const uint8_t *codes = (const uint8_t *)block + g->codes + lane;
    __m256 all[ROWS_AVX2];
    for (long r = 0; r < rows; r++) all[r] = _mm256_setzero_ps();
    for (long from = 0, place = lane; from < n; from += g->group, place += BLOCK) {
        const long end = from + g->group < n ? from + g->group : n;
        __m256 sums[ROWS_AVX2][2], two[2];
        for (long r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
        for (long i = from; i < end; i += 2) {
            two_avx2(g, codes, i, two, bits);
            for (long r = 0; r < rows; r++)
                for (long k = 0; k < 2; k++) sums[r][k] = _mm256_fmadd_ps(two[k], _mm256_set1_ps(x[r * n + i + k]), sums[r][k]);
        }
        const __m256 scale = scales_avx2(g, block, place);
        for (long r = 0; r < rows; r++) all[r] = _mm256_fmadd_ps(_mm256_add_ps(sums[r][0], sums[r][1]), scale, all[r]);
    }
    for (long r = 0; r < rows; r++) _mm256_storeu_ps(totals + r * BLOCK + lane, all[r]);
}

AVX2 INLINE void blocks_float_bits_avx2(const Product *job, long row, long rows, long block, long end, const int bits) {
    for (; block < end; block++) {
        const char *at = (const char *)job->weight->data + block * grouping(job)->stride;
        float totals[MOST_AT_ONCE * BLOCK];
        for (long lane = 0; lane < BLOCK; lane += EIGHT)
            for (long r = 0; r < rows; r += ROWS_AVX2) {
                float *to = totals + r * BLOCK;
#define SOME(count) float_sums_avx2(job, row + r, at, lane, to, count, bits)
                if (rows - r >= ROWS_AVX2) SOME(ROWS_AVX2);
                else if (rows - r == 3) SOME(3);
                else if (rows - r == 2) SOME(2);
                else SOME(1);
#undef SOME
            }
        finish_groups(job, row, rows, block, totals);
    }
}

AVX2 static void blocks_float_avx2(const Product *job, long row, long rows, long block, long end) {
    if (grouping(job)->bits == 8) blocks_float_bits_avx2(job, row, rows, block, end, 8);
    else blocks_float_bits_avx2(job, row, rows, block, end, 4);
}

/* ----- by AVX-512 */

AVX512_VNNI INLINE __m512 float8_avx512(const uint8_t *at) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)at));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(wide, 8), _mm256_set1_epi16((short)0x8000));
    return _mm512_cvtph_ps(_mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80)), sign));
}

/* sums += weights * a number of x. Written out because GCC keeps x of every row in a register, and runs out. */
AVX512_VNNI INLINE void add_float(__m512 *sums, __m512 weights, const float *x) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*sums) : "v"(weights), "m"(*x));
}

AVX512_VNNI INLINE void two_avx512(const uint8_t *codes, __m512 table, __m512 two[2], const int bits) {
    if (bits == 8) {
        two[0] = float8_avx512(codes), two[1] = float8_avx512(codes + BLOCK);
    } else { /* the permutation looks at four bits of an index */
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)codes));
        two[0] = _mm512_permutexvar_ps(both, table), two[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table);
    }
}

AVX512_VNNI INLINE void float_sums_avx512(const Product *job, long row, long index, const long rows, const int bits) {
    const Grouping *g = grouping(job);
    const long n = even(job->weight->inputs);
    const char *block = (const char *)job->weight->data + index * g->stride;
    const float *x = wide_row(job, row);
    const uint8_t *codes = (const uint8_t *)block + g->codes;
    __m512 table = _mm512_setzero_ps();
    if (bits == 4) table = _mm512_loadu_ps(g->table);
    float totals[FLOAT_ROWS * BLOCK] __attribute__((aligned(64)));
    memset(totals, 0, rows * BLOCK * sizeof(float));
    prefetch(block + FAR, g->codes);
    for (long from = 0, place = 0; from < n; from += g->group, place += BLOCK) {
        const long end = from + g->group < n ? from + g->group : n;
        __m512 sums[FLOAT_ROWS][2][2], two[2];
#pragma GCC unroll 6
        for (long r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (long v = 0; v < 2; v++) sums[r][v][0] = sums[r][v][1] = _mm512_setzero_ps();
        for (long i = from; i < end; i += 2, codes += bits / 4 * BLOCK) {
            __builtin_prefetch(codes + FAR); /* a line of the cache, in eight bits */
#pragma GCC unroll 2
            for (long v = 0; v < 2; v++) {
                two_avx512(codes + v * LANES, table, two, bits);
#pragma GCC unroll 6
                for (long r = 0; r < rows; r++)
#pragma GCC unroll 2
                    for (long k = 0; k < 2; k++) add_float(&sums[r][v][k], two[k], x + r * n + i + k);
            }
        }
#pragma GCC unroll 2
        for (long v = 0; v < 2; v++) {
            const __m512 scale = scales_vnni(g, block, place + v * LANES);
#pragma GCC unroll 6
            for (long r = 0; r < rows; r++) {
                float *to = totals + r * BLOCK + v * LANES;
                _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_add_ps(sums[r][v][0], sums[r][v][1]), scale, _mm512_load_ps(to)));
            }
        }
    }
    finish_groups(job, row, rows, index, totals);
}

AVX512_VNNI INLINE void blocks_float_bits_avx512(const Product *job, long row, long rows, long block, long end, const int bits) {
    for (; block < end; block++)
        for (long from = row, left = rows; left > 0; from += FLOAT_ROWS, left -= FLOAT_ROWS) {
#define SOME(r) float_sums_avx512(job, from, block, r, bits)
            EACH_ROWS(left < FLOAT_ROWS ? left : FLOAT_ROWS, SOME)
#undef SOME
        }
}

AVX512_VNNI static void blocks_float_avx512(const Product *job, long row, long rows, long block, long end) {
    if (grouping(job)->bits == 8) blocks_float_bits_avx512(job, row, rows, block, end, 8);
    else blocks_float_bits_avx512(job, row, rows, block, end, 4);
}

#endif

/* ----- the whole product */

INTERNAL int use_float8_pairs;

static int in_pairs(const Product *job) {
    return use_float8_pairs && int4_isa == VNNI_INT4 && in_bfloat16(job->weight) && grouping(job)->bits == 8;
}

INTERNAL void blocks_float(const Product *job, long row, long rows, long block, long end) {
#if defined(__x86_64__)
    if (in_pairs(job)) return blocks_float8_pairs(job, row, rows, block, end);
    if (int4_isa == VNNI_INT4) return blocks_float_avx512(job, row, rows, block, end);
    if (int4_isa == AVX2_INT4) return blocks_float_avx2(job, row, rows, block, end);
#endif
    blocks_float_generic(job, row, rows, block, end);
}

INTERNAL void product_float(const Product *job) {
    if (!job->rows) return;
    Widening widening = {job, row_scratch(job->rows * even(job->weight->inputs) * sizeof(float)), in_pairs(job)};
    share(widen_piece, &widening, ceiling(job->rows, SOME_ROWS));
    Product widened = *job;
    widened.x = widening.rows;
    share_product(&widened);
}
