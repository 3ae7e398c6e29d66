/* The hot core of the grammars: determinises the network lazily and walks the token trie. The same in plain
 * Python, in `grammars/automaton`, says what the numbers mean. Called through ctypes without the GIL; a core is not reentrant, its
 * caller holds a lock. Results below zero are codes. The network that it reads is lowered here as well, with the GIL:
 * `lowering/lower_exprs.h`, which Python calls through `python/grammar_core_module.c`. */
#ifndef SGL_CORE_AUTOMATON_AUTOMATON_CORE_H
#define SGL_CORE_AUTOMATON_AUTOMATON_CORE_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"
#include "../pieces/piece_automaton.h"

INTERNAL int add_pieces(Core *c, const Pieces *pieces);
API int32_t core_extend(Core *c, const Node *nodes, int32_t n, const int32_t *edges, int32_t m, const Class *classes, int32_t k, const int32_t *entries, int32_t r);

#endif
