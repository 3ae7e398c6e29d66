/* Expressions made and compared in C: `seq`, `alt` and `nullable` of `expr.py`, which says what they are. */
#ifndef SGL_CORE_EXPRESSIONS_GRAMMAR_EXPRS_H
#define SGL_CORE_EXPRESSIONS_GRAMMAR_EXPRS_H

#include "../base/grammar_core_common.h"

/* Whether a row is empty of something wanted: 1 where `holds` is `wanted` of any item, 0, or -1 with an exception. */
typedef int (*Holds)(PyObject *expr, void *of);

INTERNAL_DATA PyObject *nothing_read, *never;
INTERNAL_DATA PyObject *plain_repeat;

INTERNAL int learn_constants(PyObject *module);
INTERNAL int shape_at(PyObject *expr);
INTERNAL PyObject *made(int shape, PyObject *field);
INTERNAL PyObject *seq_of(PyObject *const *items, Py_ssize_t count);
INTERNAL int deeper(void);
INTERNAL PyObject *alt_of(PyObject *const *items, Py_ssize_t count);
INTERNAL PyObject *row_made(int shape, PyObject *row);
INTERNAL int any_holds(PyObject *row, Holds holds, void *of, int wanted);
INTERNAL int all_hold(PyObject *row, Holds holds, void *of);
INTERNAL int is_zero(PyObject *number);
INTERNAL int is_nullable(PyObject *expr, void *of);

#endif
