/* Lazy determinisation: what a set of threads reaches, with and without reading a byte. `closure.py` says why. */
#ifndef SGL_CORE_AUTOMATON_STATE_CLOSURE_H
#define SGL_CORE_AUTOMATON_STATE_CLOSURE_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int pop(Core *c, int32_t frame);
INTERNAL void begin_closure(Core *c);
INTERNAL int32_t end_closure(Core *c);
API int32_t core_step(Core *c, int32_t state, int32_t byte);

#endif
