/* One token for every row of logits: see token_sampling.h. */

#include "../base/vector_math.h"
#include "../base/thread_scratch.h"
#include "../base/thread_pool.h"
#include "token_sampling.h"

enum { RANDOM = 1, TRUNCATED = 2, WORD = 32, PIECE = 256 };

/* Of a column that may come, its share of the largest one's chance, and where it ends in the race: the column nearest to 0 wins. */
typedef struct {
    float *share, *finish;
} Race;

INLINE uint64_t mixed_words(uint64_t x) { /* the finalizer of splitmix64 */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

INLINE float logarithm(float x) { /* relative error below 2e-7, of normal numbers above 0 */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t over = bits - 0x3f3504f3u; /* the root of a half, so that what is left is around 1 */
    const float power = (float)((int32_t)over >> 23);
    bits = (over & 0x7fffffu) + 0x3f3504f3u;
    memcpy(&x, &bits, 4);
    x -= 1.0f;
    const float square = x * x;
    float p = 7.0376836292e-2f;
    p = p * x - 1.1514610310e-1f;
    p = p * x + 1.1676998740e-1f;
    p = p * x - 1.2420140846e-1f;
    p = p * x + 1.4249322787e-1f;
    p = p * x - 1.6668057665e-1f;
    p = p * x + 2.0000714765e-1f;
    p = p * x - 2.4999993993e-1f;
    p = p * x + 3.3333331174e-1f;
    return x + (x * square * p - 0.5f * square + power * -2.12194440e-4f) + power * 0.693359375f;
}

/* Minus a unit exponential variate of a column: see `race` of sampling/noise.py. */
INLINE float exponential_noise(int32_t column, int32_t offset, int32_t factor) {
    uint32_t x = (uint32_t)column * (uint32_t)factor + (uint32_t)offset;
    x ^= (uint32_t)((int32_t)x >> 16);
    x *= 0x7FEB352Du;
    x ^= (uint32_t)((int32_t)x >> 15);
    const float below = ((float)(int32_t)x + 0.5f) * -0x1.fffffep-32f; /* within (-1, 0) */
    const float rest = 1.0f + below;
    return logarithm(rest) + (below - (rest - 1.0f)) / rest; /* what `rest` rounds away of a small one */
}

/* Adjusted logits: those that are not allowed become -inf, or NaN where they were no numbers. */
CLONES static void apply_mask(const float *logits, const int32_t *mask, long words, long width, float *to) {
    for (long from = 0, word = 0; from < width; from += WORD, word++) {
        const uint32_t bits = word < words ? (uint32_t)mask[word] : 0;
        const long count = width - from < WORD ? width - from : WORD;
#pragma omp simd
        for (long i = 0; i < count; i++) to[from + i] = logits[from + i] + (bits >> i & 1 ? 0.0f : -INFINITY);
    }
}

static int mask_allows(const int32_t *mask, long words, long column) { return column / WORD < words && (uint32_t)mask[column / WORD] >> column % WORD & 1; }

/* Whether a row's mask allows a column that is not banned. */
static int leaves_any(const SampleJob *job, long row) {
    const int32_t *mask = job->mask[row];
    const long words = job->words[row] < ceiling(job->width, WORD) ? job->words[row] : ceiling(job->width, WORD);
    if (!mask) return 1;
    long left = 0;
    for (long word = 0; word < words; word++) left += __builtin_popcount((uint32_t)mask[word] & (job->width - word * WORD < WORD ? (1u << job->width % WORD) - 1 : ~0u));
    for (long i = 0; i < job->banned[row]; i++) left -= (uint32_t)job->ban[row][i] < job->width && mask_allows(mask, words, job->ban[row][i]);
    return left > 0;
}

/* What a row may choose from: its logits, or those in `to` without what its mask and bans forbid. */
static const float *allowed_logits(const SampleJob *job, long row, float *to) {
    const float *logits = job->logits + row * job->stride;
    const int bans = job->banned[row] && leaves_any(job, row);
    if (job->mask[row]) apply_mask(logits, job->mask[row], job->words[row], job->width, to);
    else if (bans) memcpy(to, logits, job->width * sizeof(float));
    for (long i = 0; bans && i < job->banned[row]; i++)
        if ((uint32_t)job->ban[row][i] < job->width) to[job->ban[row][i]] = -INFINITY;
    return job->mask[row] || bans ? to : logits;
}

/* NaN counts as largest. */
CLONES static float largest(const float *values, long count) {
    float most = -INFINITY;
    int odd = 0;
#pragma omp simd reduction(max : most) reduction(| : odd)
    for (long i = 0; i < count; i++) {
        most = values[i] > most ? values[i] : most;
        odd |= values[i] != values[i];
    }
    return odd ? NAN : most;
}

CLONES static long first_of(const float *values, float value, long count) {
    long from = 0;
    for (int found = 0; from + PIECE < count; from += PIECE) {
#pragma omp simd reduction(| : found)
        for (long i = from; i < from + PIECE; i++) found |= values[i] == value;
        if (found) break;
    }
    while (from < count - 1 && values[from] != value) from++;
    return from;
}

/* The sum of all shares before `least` shuts any out. */
CLONES static float start_race(const float *logits, float peak, const SamplingParams *params, const int32_t *columns, uint64_t keys, long width, Race race) {
    const int32_t offset = (int32_t)keys, factor = (int32_t)(keys >> 32) | 1;
    const float steep = params->inverse_temperature, least = params->min_p;
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (long i = 0; i < width; i++) {
        const float below = (logits[i] - peak) * steep;
        const float share = below < -87.0f ? 0.0f : exponential(below);
        total += share;
        race.share[i] = share >= least ? share : 0.0f;
        race.finish[i] = exponential_noise(columns[i], offset, factor) / race.share[i];
    }
    return total;
}

/* Columns that are likelier than `level`: how many, and their shares together. */
CLONES static long count_likelier(const float *share, float level, long width, float *mass) {
    long count = 0;
    float sum = 0;
#pragma omp simd reduction(+ : count, sum)
    for (long i = 0; i < width; i++) {
        count += share[i] > level;
        sum += share[i] > level ? share[i] : 0.0f;
    }
    *mass = sum;
    return count;
}

CLONES static void exclude(const float *share, float level, long width, float *finish) {
#pragma omp simd
    for (long i = 0; i < width; i++) finish[i] = share[i] > level ? finish[i] : -INFINITY;
}

/* A token is inside when fewer than top_k tokens, of less than top_p together, are likelier. A winner outside shuts out all that are no
   likelier than itself. */
static long winner_of(const SamplingParams *params, float total, long width, Race race) {
    for (;;) {
        const long winner = first_of(race.finish, largest(race.finish, width), width);
        const float level = race.share[winner];
        float mass;
        if (!(params->flags & TRUNCATED)) return winner;
        const long count = count_likelier(race.share, level, width, &mass);
        if (count < params->top_k && mass < params->top_p * total) return winner;
        exclude(race.share, level, width, race.finish);
    }
}

static void sample_row(const void *work, long row) {
    const SampleJob *job = work;
    const SamplingParams *params = job->params + row;
    float *space = aligned_scratch(2 * job->width * sizeof(float));
    const Race race = {space, space + job->width};
    const float *logits = allowed_logits(job, row, race.share), peak = job->peak[row] = largest(logits, job->width);
    job->chosen[row] = 0;
    if (!isfinite(peak)) return;
    if (!(params->flags & RANDOM)) {
        job->chosen[row] = first_of(logits, peak, job->width);
        return;
    }
    const uint64_t keys = mixed_words(params->seed + (uint64_t)job->position[row] * 0x9E3779B97F4A7C15u);
    const float total = start_race(logits, peak, params, job->columns, keys, job->width, race);
    job->chosen[row] = winner_of(params, total, job->width, race);
}

INTERNAL void choose(const SampleJob *job) {
    if (job->rows * job->width > AT_ONCE) share(sample_row, job, job->rows);
    else
        for (long row = 0; row < job->rows; row++) sample_row(job, row);
}
