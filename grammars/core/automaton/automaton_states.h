/* States: interned sets of threads. */
#ifndef SGL_CORE_AUTOMATON_AUTOMATON_STATES_H
#define SGL_CORE_AUTOMATON_AUTOMATON_STATES_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int64_t held(Core *c);
INTERNAL int32_t intern(Core *c, int final);

#endif
