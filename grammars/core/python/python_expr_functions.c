/* See python_expr_functions.h. */

#include "python_expr_functions.h"
#include "../base/python_call_arguments.h"
#include "../expressions/grammar_exprs.h"
#include "../expressions/grammar_expr_fields.h"
#include "../expressions/grammar_expr_traversal.h"

INTERNAL PyObject *py_seq(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return seq_of(args, count);
}

INTERNAL PyObject *py_alt(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return alt_of(args, count);
}

static PyObject *truth(int found) { return found < 0 ? NULL : PyBool_FromLong(found); }

INTERNAL PyObject *py_nullable(PyObject *self, PyObject *expr) {
    (void)self;
    return truth(is_nullable(expr, NULL));
}

static PyObject *rules_of(PyObject *expr, int (*add)(PyObject *, PyObject *)) {
    PyObject *found = PySet_New(NULL);
    if (found && add(expr, found)) Py_CLEAR(found);
    return found;
}

INTERNAL PyObject *py_calls(PyObject *self, PyObject *expr) {
    (void)self;
    return rules_of(expr, add_calls);
}

INTERNAL PyObject *py_left_calls(PyObject *self, PyObject *expr) {
    (void)self;
    return rules_of(expr, add_left_calls);
}

/* substitute(expression, replace) */
INTERNAL PyObject *py_substitute(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return check_count(count, 2) ? NULL : substituted(args[0], args[1]);
}

static PyObject *held_of(PyObject *const *args, Py_ssize_t count, Holds holds) {
    if (check_count(count, 3)) return NULL;
    if (!PyAnySet_Check(args[1]) || !PyDict_Check(args[2]))
        return PyErr_SetString(PyExc_TypeError, "a set of rules and a dict of bodies belong here"), NULL;
    Known known = {args[1], args[2]};
    return truth(holds(args[0], &known));
}

/* may_be_empty(expression, rules that may, bodies) */
INTERNAL PyObject *py_may_be_empty(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return held_of(args, count, may_be_empty);
}

/* may_end(expression, rules that may, bodies) */
INTERNAL PyObject *py_may_end(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return held_of(args, count, may_end);
}

/* size(expression, sizes of rules, the largest that counts) */
INTERNAL PyObject *py_size(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    int32_t most;
    if (check_count(count, 3) || as_bound(args[2], &most)) return NULL;
    if (!PyDict_Check(args[1])) return PyErr_SetString(PyExc_TypeError, "the sizes are a dict"), NULL;
    const Sizes sizes = {args[1], most};
    long found = size_of(args[0], &sizes);
    return found < 0 ? NULL : PyLong_FromLong(found);
}
