/* What a core holds, and how it is given back. */
#ifndef SGL_CORE_AUTOMATON_AUTOMATON_MEMORY_H
#define SGL_CORE_AUTOMATON_AUTOMATON_MEMORY_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

API void core_free(Core *c);

#endif
