/* What a split leads to through other splits, worked out once: closures go there at once. Where that is much, they go
 * from split to split, so that a chain of splits is not written down once for each of its links. */
#ifndef SGL_CORE_AUTOMATON_FLATTENED_SPLITS_H
#define SGL_CORE_AUTOMATON_FLATTENED_SPLITS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

enum { MOST_FLAT = 48, NOT_FLAT = -1 };

INTERNAL int32_t flat_of(Core *c, int32_t split);

#endif
