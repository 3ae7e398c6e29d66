/* Lists in any order: interned sets of the parts that are used, and what may come next; `parts.py` says the rules. */
#ifndef SGL_CORE_AUTOMATON_UNORDERED_LIST_SUBSETS_H
#define SGL_CORE_AUTOMATON_UNORDERED_LIST_SUBSETS_H

#include "../base/grammar_core_common.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

#define SUBSET(i) AT(c->subsets, Subset, i)

INTERNAL const PartTable *part_table(Core *c, const Node *pick);
INTERNAL int holds(Core *c, const Subset *s, int32_t part);
INTERNAL int add_member(Core *c, int32_t list, int32_t from, int32_t part, Subset *found);
INTERNAL int32_t intern_subset(Core *c, const Subset *s);
INTERNAL int has_spare(Core *c, const PartTable *table, const Subset *s);
INTERNAL int may_pick(Core *c, const Node *pick, const Subset *s, int32_t part, int spare);
INTERNAL int may_go_on(Core *c, const Node *pick, const Subset *s);
INTERNAL int may_close(Core *c, const PartTable *table, const Subset *s);

#endif
