/* See grammar_expr_traversal.h. */

#include "grammar_expr_traversal.h"
#include "grammar_exprs.h"
#include "grammar_expr_fields.h"

/* Do something with the expression of every edge. */
static int each_edge(PyObject *rows, int (*act)(PyObject *, PyObject *), PyObject *found) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows); i++) {
        PyObject *row = item_at(rows, i);
        for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(row); k++)
            if (act(item_at(item_at(row, k), 0), found)) return -1;
    }
    return 0;
}

static int each_item(PyObject *row, int (*act)(PyObject *, PyObject *), PyObject *found) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); i++)
        if (act(item_at(row, i), found)) return -1;
    return 0;
}

INTERNAL int add_calls(PyObject *expr, PyObject *found) {
    const int shape = shape_at(expr);
    if (shape == CALL_RULE) return PySet_Add(found, FIELD(expr, CALL_RULE, 0));
    if (shape != SEQ && shape != ALT && shape != REPEAT && shape != GRAPH) return 0;
    if (deeper()) return -1;
    PyObject *inner = FIELD(expr, shape, 0);
    int code = shape == REPEAT  ? add_calls(inner, found)
               : shape == GRAPH ? each_edge(inner, add_calls, found)
                                : each_item(inner, add_calls, found);
    Py_LeaveRecursiveCall();
    return code;
}

static int add_row_heads(PyObject *row, PyObject *found) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); i++) {
        if (add_left_calls(item_at(row, i), found)) return -1;
        int empty = is_nullable(item_at(row, i), NULL);
        if (empty < 1) return empty;
    }
    return 0;
}

INTERNAL int add_left_calls(PyObject *expr, PyObject *found) {
    const int shape = shape_at(expr);
    if (shape == CALL_RULE) return PySet_Add(found, FIELD(expr, CALL_RULE, 0));
    if (shape != SEQ && shape != ALT && shape != REPEAT && shape != GRAPH) return 0;
    if (deeper()) return -1;
    PyObject *inner = FIELD(expr, shape, 0);
    int code = shape == REPEAT ? add_left_calls(inner, found)
               : shape == ALT  ? each_item(inner, add_left_calls, found)
               : shape == SEQ  ? add_row_heads(inner, found) : 0;
    for (Py_ssize_t k = 0; shape == GRAPH && !code && k < PySequence_Fast_GET_SIZE(item_at(inner, 0)); k++)
        code = add_left_calls(item_at(item_at(item_at(inner, 0), k), 0), found);
    Py_LeaveRecursiveCall();
    return code;
}

static int row_holds(PyObject *expr, int shape, Holds holds, void *of) {
    if (deeper()) return -1;
    PyObject *inner = FIELD(expr, shape, 0);
    int zero = shape == REPEAT ? is_zero(FIELD(expr, REPEAT, 1)) : 0;
    int found = zero             ? zero
                : shape == REPEAT ? holds(inner, of)
                : shape == SEQ    ? all_hold(inner, holds, of)
                                  : any_holds(inner, holds, of, 1);
    Py_LeaveRecursiveCall();
    return found;
}

INTERNAL int may_be_empty(PyObject *expr, void *of) {
    const Known *known = of;
    const int shape = shape_at(expr);
    if (shape == CALL_RULE) return PySet_Contains(known->rules, FIELD(expr, CALL_RULE, 0));
    if (shape == SEQ || shape == ALT || shape == REPEAT) return row_holds(expr, shape, may_be_empty, of);
    return shape == CHARS ? 0 : is_nullable(expr, NULL);
}

INTERNAL int may_end(PyObject *expr, void *of) {
    const Known *known = of;
    const int shape = shape_at(expr);
    if (shape == SEQ || shape == ALT || shape == REPEAT) return row_holds(expr, shape, may_end, of);
    if (shape != CALL_RULE) return 1;
    int found = PySet_Contains(known->rules, FIELD(expr, CALL_RULE, 0));
    if (found) return found;
    found = PyDict_Contains(known->bodies, FIELD(expr, CALL_RULE, 0));
    return found < 0 ? -1 : !found;
}

static PyObject *call_replaced(PyObject *expr, PyObject *replace) {
    PyObject *found = PyObject_CallOneArg(replace, FIELD(expr, CALL_RULE, 0));
    if (found != Py_None) return found;
    Py_DECREF(found);
    return Py_NewRef(expr);
}

/* The row with its calls replaced, as a list; `changed` says whether any was. */
static PyObject *row_replaced(PyObject *row, PyObject *replace, int *changed) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(row);
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; i < count && found; i++) {
        PyObject *item = substituted(item_at(row, i), replace);
        if (!item) Py_CLEAR(found);
        else PyList_SET_ITEM(found, i, item);
        *changed |= item != item_at(row, i);
    }
    return found;
}

static PyObject *items_replaced(PyObject *expr, int shape, PyObject *replace) {
    int changed = 0;
    PyObject *row = row_replaced(FIELD(expr, shape, 0), replace, &changed);
    if (!row) return NULL;
    PyObject *found = changed ? row_made(shape, row) : Py_NewRef(expr);
    Py_DECREF(row);
    return found;
}

static PyObject *repeat_replaced(PyObject *expr, PyObject *replace) {
    PyObject *item = substituted(FIELD(expr, REPEAT, 0), replace);
    if (!item) return NULL;
    PyObject *found = item == FIELD(expr, REPEAT, 0)
                          ? Py_NewRef(expr)
                          : PyObject_CallFunctionObjArgs(plain_repeat, item, FIELD(expr, REPEAT, 1), FIELD(expr, REPEAT, 2), NULL);
    Py_DECREF(item);
    return found;
}

static PyObject *edge_replaced(PyObject *edge, PyObject *replace) {
    PyObject *expr = substituted(item_at(edge, 0), replace);
    PyObject *found = expr ? PyTuple_Pack(2, expr, item_at(edge, 1)) : NULL;
    Py_XDECREF(expr);
    return found;
}

/* A tuple of what `each` makes of the items of a row. */
static PyObject *mapped(PyObject *row, PyObject *(*each)(PyObject *, PyObject *), PyObject *replace) {
    PyObject *found = PyTuple_New(PySequence_Fast_GET_SIZE(row));
    for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(found); i++) {
        PyObject *item = each(item_at(row, i), replace);
        if (!item) Py_CLEAR(found);
        else PyTuple_SET_ITEM(found, i, item);
    }
    return found;
}

static PyObject *edges_replaced(PyObject *row, PyObject *replace) { return mapped(row, edge_replaced, replace); }

static PyObject *graph_replaced(PyObject *expr, PyObject *replace) {
    PyObject *found = made(GRAPH, mapped(FIELD(expr, GRAPH, 0), edges_replaced, replace));
    if (found) FIELD(found, GRAPH, 1) = Py_NewRef(FIELD(expr, GRAPH, 1));
    return found;
}

INTERNAL PyObject *substituted(PyObject *expr, PyObject *replace) {
    const int shape = shape_at(expr);
    if (shape == CALL_RULE) return call_replaced(expr, replace);
    if (shape != SEQ && shape != ALT && shape != REPEAT && shape != GRAPH) return Py_NewRef(expr);
    if (deeper()) return NULL;
    PyObject *found = shape == REPEAT  ? repeat_replaced(expr, replace)
                      : shape == GRAPH ? graph_replaced(expr, replace)
                                       : items_replaced(expr, shape, replace);
    Py_LeaveRecursiveCall();
    return found;
}

static long call_size(PyObject *rule, const Sizes *s) {
    PyObject *known = PyDict_GetItemWithError(s->known, rule);
    if (!known) return PyErr_Occurred() ? -1 : 1;
    long size = PyLong_AsLong(known);
    return size <= s->most ? size : 1;
}

static long row_size_of(PyObject *row, const Sizes *s, long more, int edges) {
    long sum = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); i++) {
        long one = size_of(edges ? item_at(item_at(row, i), 0) : item_at(row, i), s);
        if (one < 0) return -1;
        sum += one + more;
    }
    return sum;
}

static long graph_size(PyObject *rows, const Sizes *s) {
    long sum = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows); i++) {
        long one = row_size_of(item_at(rows, i), s, 1, 1);
        if (one < 0) return -1;
        sum += one;
    }
    return sum;
}

INTERNAL long size_of(PyObject *expr, const Sizes *s) {
    const int shape = shape_at(expr);
    if (shape == CALL_RULE) return call_size(FIELD(expr, CALL_RULE, 0), s);
    if (shape == LITERAL || shape == CHARS) return (long)PyObject_Size(FIELD(expr, shape, 0));
    if (shape != SEQ && shape != ALT && shape != REPEAT && shape != GRAPH) return 1;
    if (deeper()) return -1;
    PyObject *inner = FIELD(expr, shape, 0);
    long found = shape == GRAPH ? graph_size(inner, s) : shape == REPEAT ? size_of(inner, s) : row_size_of(inner, s, 0, 0);
    Py_LeaveRecursiveCall();
    return found < 0 ? -1 : found + (shape != GRAPH);
}
