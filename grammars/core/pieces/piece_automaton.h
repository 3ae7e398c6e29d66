/* The deterministic automaton of the pieces of a text, over the bytes that spell them in a JSON string. It does not
 * change once it is built, and any number of cores share it. */
#ifndef SGL_CORE_PIECES_PIECE_AUTOMATON_H
#define SGL_CORE_PIECES_PIECE_AUTOMATON_H

#include "../base/grammar_core_common.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

typedef struct { int32_t first, count; } PieceState; /* its edges, in order of their bytes */

typedef struct Pieces {
    Array states, bytes, targets, distances; /* PieceState, uint8_t, int32_t; of each state how many bytes end a piece, 0 where one ends */
} Pieces;

/* What a COPY node is about, of the core `c`. */
#define PIECES(n) AT(c->pieces, const Pieces *, (n)->a)
#define PIECE_STATE(p, i) AT((p)->states, PieceState, i)
#define PIECE_ENDS(p, i) ((i) && !AT((p)->distances, int32_t, i))

INTERNAL int build_pieces(Pieces *p, const uint32_t *symbols, int32_t count, const uint8_t *starts, const uint8_t *ends, int ascii);
INTERNAL void free_pieces(Pieces *p);
INTERNAL int64_t pieces_memory(const Pieces *p);
INTERNAL int32_t piece_step(const Pieces *p, int32_t state, int byte);
INTERNAL void add_piece_bytes(const Pieces *p, int32_t state, Class *live);
INTERNAL int32_t piece_end(const Pieces *p, int32_t state, uint8_t *out);

#endif
