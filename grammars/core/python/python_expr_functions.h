/* What Python calls of `grammar_exprs.h` and `grammar_expr_traversal.h`. */
#ifndef SGL_CORE_PYTHON_PYTHON_EXPR_FUNCTIONS_H
#define SGL_CORE_PYTHON_PYTHON_EXPR_FUNCTIONS_H

#include "../base/grammar_core_common.h"

INTERNAL PyObject *py_seq(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_alt(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_nullable(PyObject *self, PyObject *expr);
INTERNAL PyObject *py_calls(PyObject *self, PyObject *expr);
INTERNAL PyObject *py_left_calls(PyObject *self, PyObject *expr);
INTERNAL PyObject *py_substitute(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_may_be_empty(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_may_end(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_size(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
