/* What states have in common wherever they are called from: the deepest frame that all threads of a state share is
 * taken for the bottom. The relative state allows what it allows by itself, and names the trie nodes where it may
 * return; only there does the caller matter. */
#ifndef SGL_CORE_MASKS_LOCAL_STATE_MASKS_H
#define SGL_CORE_MASKS_LOCAL_STATE_MASKS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int32_t common_frame(Core *c, int32_t state);
INTERNAL int32_t relative(Core *c, int32_t state, int32_t *bottom);
INTERNAL void drop_locals(Core *c);
INTERNAL int32_t local(Core *c, int32_t state, int32_t bottom);

#endif
