/* Every kind of expression to its function, and a rule as a whole. */
#ifndef SGL_CORE_LOWERING_LOWER_EXPRS_H
#define SGL_CORE_LOWERING_LOWER_EXPRS_H

#include "../base/grammar_core_common.h"
#include "rule_lowering.h"
#include "network_tables.h"

INTERNAL int32_t lower(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_rule(Tables *t, int32_t rule, PyObject *body);

#endif
