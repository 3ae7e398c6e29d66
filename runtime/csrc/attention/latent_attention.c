/* Latent attention of both element types: see latent_attention.h. */

#include "latent_attention.h"
#include "kv_rows.h"

INTERNAL LatentPiece latent_piece(const Latent *job, long index) {
    const long groups = ceiling(job->of.group, LATENT_HEADS), split = index % job->splits, head = index / job->splits % groups * LATENT_HEADS;
    const long row = job->from + index / job->splits / groups, first = split * SPLIT, left = job->of.length[row] - first;
    const long heads = job->of.group - head < LATENT_HEADS ? job->of.group - head : LATENT_HEADS;
    return (LatentPiece){job, row, head, heads, split, first, left < SPLIT ? left : SPLIT};
}

#include "../base/f32.inc"
#include "latent_attention.inc"
#include "../base/bf16.inc"
#include "latent_attention.inc"
#include "../base/untyped.inc"
