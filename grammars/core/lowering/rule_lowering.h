/* The lowering of one rule, from its end to its start, equal tails shared: `_Lowering` of `network.py` function by
 * function, with the same tables. It reads Python objects, so it holds the GIL. Results are nodes, or below zero with
 * an exception set. */
#ifndef SGL_CORE_LOWERING_RULE_LOWERING_H
#define SGL_CORE_LOWERING_RULE_LOWERING_H

#include "../base/grammar_core_common.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "network_tables.h"

enum { FAILED = NO_MEMORY, NOWHERE = -6 };
enum { UNROLLED = 3, MOST_COPIES = 27, DEEPEST = 2000, MOST_SPARE = 1 << 14, PLAIN_REPEATED = 2 };
enum { KEY_EXPR = -1, KEY_LITERAL = -2, KEY_TRIE = -3 }; /* other keys are nodes and begin with their kind */
typedef struct { int32_t loop, repeated; } Scope; /* see `Scope` of network.py */

typedef struct {
    Tables *tables;
    Memo memo;
    Array targets;          /* a stack of nodes that will be split */
    Array branches, levels; /* stacks of the trie that is being built */
    Array products;         /* of the class of characters that is being lowered */
    int32_t depth;
    int32_t copies; /* of what is lowered now, by the repeats around it */
} Lowering;

#define EDGE(i) AT(l->tables->edges, int32_t, i)
#define LOWERED(i) AT(l->tables->nodes, Node, i)

INTERNAL int32_t add_node(Lowering *l, int32_t kind, int32_t a, int32_t b, int32_t c, int32_t loop);
INTERNAL int32_t shared(Lowering *l, int32_t kind, int32_t a, int32_t b, int32_t c, int32_t loop);
INTERNAL Class range_class(int low, int high);
INTERNAL int32_t byte_node(Lowering *l, const Class *set, int32_t after, int32_t loop, int32_t plain);
INTERNAL int push_target(Lowering *l, int32_t target);
INTERNAL int32_t split(Lowering *l, int32_t base, int32_t loop);
INTERNAL int32_t split_shared(Lowering *l, int32_t base, int final, int32_t after, int32_t loop);

#endif
