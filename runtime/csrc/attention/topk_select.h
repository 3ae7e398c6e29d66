/* Which tokens a query token attends to (see attention/chosen.py).

   A token's scores lie in a row of their own; a score is summed up over the heads in order, whatever else is computed. */
#ifndef SGL_ATTENTION_TOPK_SELECT_H
#define SGL_ATTENTION_TOPK_SELECT_H

#include "../base/common.h"

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

INTERNAL void choose_best(const void *work, long token); /* of a Choice whose scores are there */
INTERNAL void choose_tokens_f32(Choice *job);
INTERNAL void choose_tokens_bf16(Choice *job);

#endif
