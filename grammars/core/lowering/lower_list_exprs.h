/* Rows, repeats and lists. */
#ifndef SGL_CORE_LOWERING_LOWER_LIST_EXPRS_H
#define SGL_CORE_LOWERING_LOWER_LIST_EXPRS_H

#include "../base/grammar_core_common.h"
#include "rule_lowering.h"

INTERNAL int32_t lower_seq(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_repeat(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_joined(Lowering *l, PyObject *expr, int32_t after, Scope scope);

#endif
