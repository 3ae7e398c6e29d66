/* What walks down an expression stops with an error before the stack of its thread, which may be a small one, is full. */
#ifndef SGL_CORE_EXPRESSIONS_STACK_LIMIT_H
#define SGL_CORE_EXPRESSIONS_STACK_LIMIT_H

#include "../base/grammar_core_common.h"

INTERNAL int check_stack(void);

#endif
