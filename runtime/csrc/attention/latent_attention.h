/* Latent attention (arXiv 2405.04434). All heads read the same rows, whose first numbers are the values. The products of each head's own numbers
   come before and after it.

   A piece is a few heads of one query token over SPLIT rows, each of which is fetched once for all of them. Where a token sees more,
   its pieces leave sums, which are merged in order: its bits depend on nothing but the rows that it sees. */
#ifndef SGL_ATTENTION_LATENT_ATTENTION_H
#define SGL_ATTENTION_LATENT_ATTENTION_H

#include "attention.h"

#define LATENT_HEADS 16
enum { SPLIT = 256, MOST_ROW = 1024, WAVE = 1 << 26 }; /* rows of a piece; numbers of a row; bytes of sums that are kept at a time */

typedef struct {
    Attention of;                /* of one KV head, whose group is all heads; dim: of a row */
    long values;                 /* the first numbers of a row */
    long from, splits;           /* tokens before those of this wave; the most that one of them has */
    float *mixed, *most, *total; /* [tokens, splits, heads, values], [tokens, splits, heads] twice */
} Latent;

typedef struct {
    const Latent *job;
    long row, head, heads, split, first, count; /* the piece's rows: of those that the token sees */
} LatentPiece;

INTERNAL LatentPiece latent_piece(const Latent *job, long index);

typedef struct { /* y [rows, heads, outputs] = x [rows, heads, inputs] times weight [heads, inputs, outputs], head by head; strides of x */
    const void *x, *weight;
    void *y;
    long rows, heads, inputs, outputs, x_row, x_head;
} Headwise;

INTERNAL void attend_latent_f32(Latent *job);
INTERNAL void headwise_f32(const Headwise *job);
INTERNAL void attend_latent_bf16(Latent *job);
INTERNAL void headwise_bf16(const Headwise *job);

#endif
