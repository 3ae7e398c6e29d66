/* What works for long with the GIL lets others have it again and again, if they wait for it. */
#ifndef SGL_CORE_EXPRESSIONS_GIL_YIELD_H
#define SGL_CORE_EXPRESSIONS_GIL_YIELD_H

#include "../base/grammar_core_common.h"

INTERNAL void yield_gil(void);

#endif
