/* Which tokens a query token attends to: see attention_topk_select.h. */

#include "kv_rows.h"
#include "attention_topk_select.h"

/* Rises with the score, and is one for both zeros. */
INLINE uint32_t rank_of(float score) {
    uint32_t bits;
    score = score == 0 ? 0 : score;
    memcpy(&bits, &score, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The best of a token, in order: the rank of the last one is found eight bits at a time, and of its equals the first are taken. */
INTERNAL void select_best(const void *work, long token) {
    const TopkSelect *job = work;
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

#include "../base/f32.inc"
#include "attention_topk_select.inc"
#include "../base/bf16.inc"
#include "attention_topk_select.inc"
#include "../base/untyped.inc"
