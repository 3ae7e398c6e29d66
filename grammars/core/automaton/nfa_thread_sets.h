/* Sets of threads: their hashes and order, and what of them others do as well. */
#ifndef SGL_CORE_AUTOMATON_NFA_THREAD_SETS_H
#define SGL_CORE_AUTOMATON_NFA_THREAD_SETS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int has(const Class *set, int byte);
INTERNAL uint32_t hash_threads(const Thread *t, int32_t count);
INTERNAL int same(const Thread *x, const Thread *y);
INTERNAL int grow(Core *c, Index *index, int32_t entries, uint32_t (*hash_of)(Core *, int32_t));
INTERNAL int32_t sort_unique(Core *c, Thread *t, int32_t count);
INTERNAL int32_t drop_dominated(Core *c, Thread *t, int32_t count);

#endif
