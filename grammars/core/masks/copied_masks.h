/* Masks of states within pieces of a text: the trie is walked with the states of the text's own automaton, so that no
 * state is made of what is only looked at. */
#ifndef SGL_CORE_MASKS_COPIED_MASKS_H
#define SGL_CORE_MASKS_COPIED_MASKS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int32_t popped(Core *c, int32_t frame);
INTERNAL int32_t state_outside(Core *c, int32_t state);
INTERNAL int walk_pieces(Core *c, const Trie *t, int32_t state, int32_t from, int32_t to, uint32_t *out);
INTERNAL int walk_copied(Core *c, const Trie *t, int32_t state, int32_t from, int32_t to, uint32_t *out);

#endif
