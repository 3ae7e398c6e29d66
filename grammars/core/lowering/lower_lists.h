/* Rows, repeats and lists. */
#ifndef SGL_CORE_LOWERING_LOWER_LISTS_H
#define SGL_CORE_LOWERING_LOWER_LISTS_H

#include "../base/common.h"
#include "lowering.h"

INTERNAL int32_t lower_seq(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_repeat(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_joined(Lowering *l, PyObject *expr, int32_t after, Scope scope);

#endif
