/* Literals; tries of words, deepest nodes first, equal tails shared; tries of names that are left at every node. */
#ifndef SGL_CORE_LOWERING_LOWER_LITERAL_TRIES_H
#define SGL_CORE_LOWERING_LOWER_LITERAL_TRIES_H

#include "../base/grammar_core_common.h"
#include "rule_lowering.h"

INTERNAL int32_t lower_literal(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_words(Lowering *l, PyObject *expr, int32_t after, Scope scope);
INTERNAL int32_t lower_other_than(Lowering *l, PyObject *expr, int32_t after, Scope scope);

#endif
