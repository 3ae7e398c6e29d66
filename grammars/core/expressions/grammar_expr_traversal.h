/* Walks through expressions that the normal form of EBNF needs: the functions of the same names of `ebnf/epsilon.py`,
 * `ebnf/corners.py` and `ebnf/assemble.py`, which say what they find. */
#ifndef SGL_CORE_EXPRESSIONS_GRAMMAR_EXPR_TRAVERSAL_H
#define SGL_CORE_EXPRESSIONS_GRAMMAR_EXPR_TRAVERSAL_H

#include "../base/grammar_core_common.h"

typedef struct { PyObject *rules, *bodies; } Known;
typedef struct { PyObject *known; long most; } Sizes;

INTERNAL int add_calls(PyObject *expr, PyObject *found);
INTERNAL int add_left_calls(PyObject *expr, PyObject *found);
INTERNAL int may_be_empty(PyObject *expr, void *of);
INTERNAL int may_end(PyObject *expr, void *of);
INTERNAL PyObject *substituted(PyObject *expr, PyObject *replace);
INTERNAL long size_of(PyObject *expr, const Sizes *s);

#endif
