/* Which tokens a query token attends to (see attention/chosen.py), for one element type: TYPE, with NAME(f), and WIDE, the instructions.

   A token's scores lie in a row of their own; a score is summed up over the heads in order, whatever else is computed. */

#ifndef SCORED
#define SCORED 512 /* rows of a piece */
#define SCORED_HEADS 8

typedef struct {
    const void *q, *keys;        /* [tokens, heads, dim], tokens q_stride numbers apart; [slots, dim] */
    const float *shares;         /* [tokens, heads] */
    const int32_t *const *slots; /* [tokens] where the slots of what a token sees begin */
    const int64_t *length;       /* [tokens] how many they are */
    float *scores;               /* [tokens, width], written where a token sees more than `most` */
    int32_t *chosen;             /* [tokens, most] */
    long tokens, heads, dim, q_stride, width, most, parts;
    float scale;
} Choice;

/* Rises with the score, and is one for both zeros. */
INLINE uint32_t rank_of(float score) {
    uint32_t bits;
    score = score == 0 ? 0 : score;
    memcpy(&bits, &score, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The best of a token, in order: the rank of the last one is found eight bits at a time, and of its equals the first are taken. */
static void choose_best(const void *work, long token) {
    const Choice *job = work;
    const int32_t *slots = job->slots[token];
    const float *scores = job->scores + token * job->width;
    int32_t *chosen = job->chosen + token * job->most;
    const long length = job->length[token];
    if (length <= job->most) {
        memcpy(chosen, slots, length * sizeof(int32_t));
        return;
    }
    uint32_t lowest = 0;
    long needed = job->most;
    for (int shift = 24; shift >= 0; shift -= 8) {
        long count[256] = {0}, digit = 255;
        for (long j = 0; j < length; j++) {
            const uint32_t rank = rank_of(scores[j]);
            count[rank >> shift & 255] += shift == 24 || rank >> (shift + 8) == lowest;
        }
        while (count[digit] < needed) needed -= count[digit--];
        lowest = lowest << 8 | (uint32_t)digit;
    }
    for (long j = 0; j < length; j++) {
        const uint32_t rank = rank_of(scores[j]);
        if (rank > lowest || (rank == lowest && needed-- > 0)) *chosen++ = slots[j];
    }
}
#endif

CLONES static void NAME(score_plainly)(const void *work, long index) {
    const Choice *job = work;
    const long token = index / job->parts, begin = index % job->parts * SCORED, length = job->length[token], dim = job->dim;
    const long end = begin + SCORED < length ? begin + SCORED : length;
    const TYPE *q = (const TYPE *)job->q + token * job->q_stride;
    float wide[MOST_DIM];
    if (length <= job->most) return;
    for (long j = begin; j < end; j++) {
        const TYPE *key = (const TYPE *)job->keys + job->slots[token][j] * dim;
        float sum = 0;
        for (long i = 0; i < dim; i++) wide[i] = NAME(to_float)(key[i]);
        for (long h = 0; h < job->heads; h++) {
            const float score = NAME(dot)(wide, q + h * dim, dim) * job->scale;
            sum += score > 0 ? score * job->shares[token * job->heads + h] : 0;
        }
        job->scores[token * job->width + j] = sum;
    }
}

#if defined(__x86_64__)
/* What some heads add to the scores of LANES rows, which lie column by column: a register for each head. */
WIDE INLINE void NAME(score_heads)(const Choice *job, const float *q, const float *shares, const float *columns, float *sums, const long heads) {
    __m512 scores[SCORED_HEADS], all = _mm512_loadu_ps(sums);
#pragma GCC unroll 8
    for (long g = 0; g < heads; g++) scores[g] = _mm512_setzero_ps();
    for (long i = 0; i < job->dim; i++) {
        const __m512 column = _mm512_loadu_ps(columns + i * LANES);
#pragma GCC unroll 8
        for (long g = 0; g < heads; g++) scores[g] = _mm512_fmadd_ps(_mm512_set1_ps(q[g * job->dim + i]), column, scores[g]);
    }
#pragma GCC unroll 8
    for (long g = 0; g < heads; g++) {
        const __m512 scaled = _mm512_max_ps(_mm512_mul_ps(scores[g], _mm512_set1_ps(job->scale)), _mm512_setzero_ps());
        all = _mm512_fmadd_ps(scaled, _mm512_set1_ps(shares[g]), all);
    }
    _mm512_storeu_ps(sums, all);
}

WIDE static void NAME(score_widely)(const void *work, long index) {
    const Choice *job = work;
    const long token = index / job->parts, first = index % job->parts * SCORED, length = job->length[token], dim = job->dim;
    const long end = first + SCORED < length ? first + SCORED : length;
    const TYPE *q = (const TYPE *)job->q + token * job->q_stride, *keys = job->keys;
    const float *shares = job->shares + token * job->heads;
    const int32_t *slots = job->slots[token];
    if (length <= job->most || first >= end) return;
    float *columns = aligned_space((LANES + job->heads) * dim * sizeof(float)), *query = columns + LANES * dim;
    for (long i = 0; i < job->heads * dim; i++) query[i] = NAME(to_float)(q[i]);
    for (long begin = first; begin < end; begin += LANES) {
        const long count = end - begin < LANES ? end - begin : LANES;
        float sums[LANES] = {0};
        for (long j = 0; j < LANES; j++) { /* those behind are scored too, and left aside */
            const TYPE *row = keys + slots[begin + (j < count ? j : 0)] * dim;
            if (begin + LANES + j < end) prefetch(keys + slots[begin + LANES + j] * dim, dim * sizeof(TYPE));
            for (long i = 0; i < dim; i++) columns[i * LANES + j] = NAME(to_float)(row[i]);
        }
        long h = 0;
        for (; h + SCORED_HEADS <= job->heads; h += SCORED_HEADS) NAME(score_heads)(job, query + h * dim, shares + h, columns, sums, SCORED_HEADS);
        for (; h < job->heads; h++) NAME(score_heads)(job, query + h * dim, shares + h, columns, sums, 1);
        memcpy(job->scores + token * job->width + begin, sums, count * sizeof(float));
    }
}
#else
static void NAME(score_widely)(const void *work, long index) { (void)work, (void)index; }
#endif

static void NAME(choose_tokens)(Choice *job) {
    job->parts = ceiling(job->width, SCORED);
    share(NAME(has_wide)(job->dim) ? NAME(score_widely) : NAME(score_plainly), job, job->tokens * job->parts);
    share(choose_best, job, job->tokens);
}
