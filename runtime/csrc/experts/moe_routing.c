/* Which experts a token goes to, with which weights, and the tokens of each expert together. */

#include "moe_experts.h"

CLONES static void score(const Experts *experts, const float *logits, float *scores, long count) {
    if (experts->sigmoid) {
#pragma omp simd
        for (long i = 0; i < count; i++) scores[i] = sigmoid_alone(logits[i]);
        return;
    }
    float most = logits[0], total = 0;
    for (long i = 1; i < count; i++) most = logits[i] > most ? logits[i] : most;
#pragma omp simd
    for (long i = 0; i < count; i++) scores[i] = exponential(logits[i] - most);
    for (long i = 0; i < count; i++) total += scores[i];
    for (long i = 0; i < count; i++) scores[i] /= total;
}

/* The best `wanted`, best first, of equal ones the one of the smaller number; writes over `scores`. */
static void take_top_k(float *scores, long count, long wanted, int32_t *chosen) {
    for (long j = 0; j < wanted; j++) {
        long best = -1;
        for (long i = 0; i < count; i++)
            if (scores[i] == scores[i] && (best < 0 || scores[i] > scores[best])) best = i;
        if (best < 0) best = j; /* all that are left are NaN: whatever comes of them is NaN too */
        chosen[j] = (int32_t)best;
        scores[best] = NAN;
    }
}

INLINE float rank_of_group(const Experts *experts, const float *choice, long size) {
    float best = -INFINITY, next = -INFINITY;
    for (long i = 0; i < size; i++) {
        if (choice[i] > best) next = best, best = choice[i];
        else if (choice[i] > next) next = choice[i];
    }
    return experts->two_best ? best + next : best;
}

/* space: as many floats and ints as there are groups */
static void mask_groups(const Experts *experts, float *choice, float *ranks, int32_t *kept) {
    const long size = experts->count / experts->groups;
    for (long g = 0; g < experts->groups; g++) ranks[g] = rank_of_group(experts, choice + g * size, size);
    take_top_k(ranks, experts->groups, experts->kept_groups, kept);
    for (long g = 0; g < experts->groups; g++) {
        long stays = 0;
        for (long j = 0; j < experts->kept_groups; j++) stays |= kept[j] == g;
        for (long i = 0; !stays && i < size; i++) choice[g * size + i] = (float)experts->outside;
    }
}

/* One token: logits [count] -> chosen [top_k] and weights [top_k]. space: 3 count floats, and count ints */
INTERNAL void route(const Experts *experts, const float *logits, float *space, int32_t *kept, int32_t *chosen, float *weights) {
    const long count = experts->count, wanted = experts->top_k;
    float *scores = space, *choice = space + count, total = 0;
    if (experts->best_first) {
        memcpy(choice, logits, count * sizeof(float));
        take_top_k(choice, count, wanted, chosen);
        for (long j = 0; j < wanted; j++) choice[j] = logits[chosen[j]];
        score(experts, choice, weights, wanted);
    } else {
        score(experts, logits, scores, count);
        for (long i = 0; i < count; i++) choice[i] = experts->correction ? scores[i] + experts->correction[i] : scores[i];
        if (experts->groups > 1) mask_groups(experts, choice, choice + count, kept);
        take_top_k(choice, count, wanted, chosen);
        for (long j = 0; j < wanted; j++) weights[j] = scores[chosen[j]];
    }
    for (long j = 0; j < wanted; j++) total += weights[j];
    const float least = (float)experts->floor, over = experts->normalise ? (total < least ? least : total) : 1.0f;
    for (long j = 0; j < wanted; j++) weights[j] = weights[j] / over * (float)experts->scale;
}

/* From the numbers of experts to those of the networks here. */
static void find_copies(const Experts *experts, int32_t *chosen, long pairs) {
    for (long p = 0; p < pairs; p++) {
        const long expert = chosen[p], copy = experts->chosen_before[expert]++ % experts->copies[expert];
        chosen[p] = (int32_t)experts->places[expert * experts->most_copies + copy];
    }
}

/* Pairs of a token and an expert in the order of experts, within one in the order of tokens: pair p comes to place[p], which is
   negative where it is computed elsewhere; what is there is of the token token[place[p]]. begin: [here + 1], where the pairs of
   an expert begin. Returns how many are computed here. chosen becomes the numbers of the networks here. */
INTERNAL long group(const Experts *experts, int32_t *chosen, long rows, long *begin, long *place, long *token) {
    const long pairs = rows * experts->top_k, here = experts->here;
    if (experts->copies) find_copies(experts, chosen, pairs);
    memset(begin, 0, (here + 1) * sizeof(long));
    for (long p = 0; p < pairs; p++)
        if (chosen[p] >= 0) begin[chosen[p] + 1]++;
    for (long e = 0; e < here; e++) {
        if (experts->chosen_before && !experts->copies) experts->chosen_before[e] += begin[e + 1];
        begin[e + 1] += begin[e];
    }
    const long total = begin[here];
    for (long p = 0; p < pairs; p++) {
        place[p] = chosen[p] < 0 ? -1 : begin[chosen[p]]++;
        if (place[p] >= 0) token[place[p]] = p / experts->top_k;
    }
    memmove(begin + 1, begin, here * sizeof(long));
    begin[0] = 0;
    return total;
}
