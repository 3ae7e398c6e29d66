/* How functions of Python take their arguments: whole numbers, which may be addresses. */
#ifndef SGL_PYTHON_PYTHON_ARGUMENTS_H
#define SGL_PYTHON_PYTHON_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "../base/cpu_kernels_common.h"

INTERNAL int parse(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, long long *out);

#define POINTER(i) ((void *)(intptr_t)a[i])
#define DISPATCH(f, ...) (a[0] ? f##_bf16(__VA_ARGS__) : f##_f32(__VA_ARGS__))

INTERNAL PyObject *py_places(PyObject *self, PyObject *const *args, Py_ssize_t n);
INTERNAL PyObject *py_named(PyObject *self, PyObject *const *args, Py_ssize_t n);
INTERNAL PyObject *py_sample(PyObject *self, PyObject *const *args, Py_ssize_t n);

#endif
