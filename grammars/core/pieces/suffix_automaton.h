/* The suffix automaton of a text (Blumer et al. 1985), of the suffixes that begin at some of its positions.
 *
 * A state stands for the pieces that end at the same positions, as far as they begin where pieces may. Whether a piece
 * may begin at a position depends only on the symbols before and after it: so of two pieces that end together the
 * shorter one ends wherever the longer one does, and there are at most twice as many states as symbols. */
#ifndef SGL_CORE_PIECES_SUFFIX_AUTOMATON_H
#define SGL_CORE_PIECES_SUFFIX_AUTOMATON_H

#include "../base/grammar_core_common.h"

typedef struct { uint32_t symbol; int32_t target, next; } SuffixEdge; /* `next` of the same state, -1 after the last */
typedef struct { int32_t link, length, edges, degree; } SuffixState;  /* `edges`: the first of them */
typedef struct { int32_t *slots; uint32_t capacity, used; } EdgeIndex; /* of the edges of states that have many */

typedef struct {
    SuffixState *states;
    SuffixEdge *edges;
    uint8_t *accepting;
    int32_t state_count, edge_count, edge_capacity;
    EdgeIndex index;
} SuffixAutomaton;

INTERNAL int build_suffixes(SuffixAutomaton *s, const uint32_t *symbols, int32_t count, const uint8_t *starts, const uint8_t *ends);
INTERNAL void free_suffixes(SuffixAutomaton *s);

#endif
