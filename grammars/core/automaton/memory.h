/* What a core holds, and how it is given back. */
#ifndef SGL_CORE_AUTOMATON_MEMORY_H
#define SGL_CORE_AUTOMATON_MEMORY_H

#include "../base/common.h"
#include "../base/types.h"

API void core_free(Core *c);

#endif
