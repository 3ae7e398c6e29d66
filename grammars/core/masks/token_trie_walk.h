/* Walks of a token trie, depth first. */
#ifndef SGL_CORE_MASKS_TOKEN_TRIE_WALK_H
#define SGL_CORE_MASKS_TOKEN_TRIE_WALK_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL void set_ids(const Trie *t, int32_t from, int32_t to, uint32_t *out);
INTERNAL int32_t step_known(Core *c, int32_t state, int byte);
INTERNAL int is_dense(Core *c, int32_t state);
INTERNAL void drop_branches(Core *c);
INTERNAL int walk(Core *c, const Trie *t, const int32_t *roots, int32_t from, int32_t to, uint32_t *out, Array *ends);
INTERNAL int walk_all(Core *c, const Trie *t, int32_t state, uint32_t *out);
INTERNAL int correct(Core *c, int32_t state, int32_t other, uint32_t *out);

#endif
