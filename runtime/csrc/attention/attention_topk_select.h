/* Which tokens a query token attends to (see attention/chosen.py).

   A token's scores are one row; a score is summed up over the heads in order, whatever else is computed. */
#ifndef SGL_ATTENTION_ATTENTION_TOPK_SELECT_H
#define SGL_ATTENTION_ATTENTION_TOPK_SELECT_H

#include "../base/cpu_kernels_common.h"

#define SCORED_ROWS 512 /* rows of a piece */
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
} TopkSelect;

INTERNAL void select_best(const void *work, long token); /* of a TopkSelect whose scores are there */
INTERNAL void topk_select_f32(TopkSelect *job);
INTERNAL void topk_select_bf16(TopkSelect *job);

#endif
