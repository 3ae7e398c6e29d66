/* What Python lays out for a step, 8 bytes a field: the same names in models/compiled_words.py. Pointers may be 0 where said. */
#ifndef SGL_STEP_DECODER_STEP_STRUCTS_H
#define SGL_STEP_DECODER_STEP_STRUCTS_H

#include "../adapters/lora_products.h"
#include "../elementwise/norm_rope_elementwise.h"
#include "../experts/moe_experts.h"
#include "../gemm/gemm.h"
#include "../recurrent/recurrent_layers.h"

enum { QKV, OUTPUT, UP, DOWN, SITES }; /* the products of a layer that adapters add to */

typedef struct {
    int64_t heads, kv_heads, dim;
    int64_t stores;                            /* 0: keys and values are another layer's, and not projected here */
    int64_t eight;                             /* keys and values are kept as e4m3, divided by their scales */
    int64_t seen, turn;                        /* which of the step's; turn -1: no rotation */
    int64_t norm_whole, norm_after;            /* queries, and keys, are normed at once, not by heads; after the rotation */
    int64_t gate;                              /* what attention mixes is multiplied with the sigmoid of as many numbers, projected after values */
    int64_t activation, gated, inner, parallel, of_sum; /* see Norms in models/spec.py */
    double scale, softcap, clip, branch;       /* softcap, clip: 0 for none */
    double k_scale, v_scale;
    void *keys, *values;                       /* the layer's own, [slots, kv_heads, dim] */
    const float *sinks, *scalar;               /* [heads] or 0; one number that x is multiplied with at the end, or 0 */
    Norm query_norm, key_norm, value_norm;     /* weights [heads, dim] of each */
    Norm before_mixer, after_mixer, before_ffn, after_ffn;
    Weight qkv, output, up, down;              /* up: gate above up where it is gated */
    const Experts *experts;                    /* in place of up and down, or 0 */
    const Recurrent *recurrent;                /* in place of attention, or 0; then `dim` is all that it mixes, of one head */
    int64_t mixes, feeds;                      /* whether there is a mixer, and a feedforward network */
} Layer;

typedef struct {
    int64_t kind, layers, hidden, wide, mixed; /* the most of any layer: of what qkv or up give; that attention mixes */
    const void *embedding;
    double embed_scale;
    Norm norm;
    Weight head;
    Layer layer[];
} Model;

typedef struct { /* what a row sees, as in Attention, and where its own keys and values go: [rows] */
    const int32_t *const *slots;
    const int64_t *length, *before, *places;
} Seen;

typedef struct {
    int64_t first, stop;                                 /* layers */
    int64_t rows, results;                               /* new tokens; which go on after the last layer of the model */
    const int64_t *tokens, *positions, *wanted;          /* [rows]; [results] rising, 0 for all rows */
    void *x, *space, *logits;                            /* [rows, hidden]; see run_step; float32 [results, vocabulary] */
    const Seen *seen;
    const void *const *tables;                           /* of rotations, [positions, 2 dim] each */
    const int64_t *adapters;                             /* [rows], the slot of each row's adapter, or below 0; 0: no row has one */
    const Pair *const *pairs;                            /* of each slot, [layers, SITES] */
    Sequences own;                                       /* where layers keep states; then there are at most STEP_ROWS rows */
} Step; /* tokens: 0 where x holds the hidden states already.  logits: 0 where they are what is wanted */

#endif
