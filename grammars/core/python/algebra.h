/* What Python calls of `exprs.h` and `traverse.h`. */
#ifndef SGL_CORE_PYTHON_ALGEBRA_H
#define SGL_CORE_PYTHON_ALGEBRA_H

#include "../base/common.h"

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
