/* See gc_untrack.h. */

#include "gc_untrack.h"
#include "grammar_expr_fields.h"

static int is_untracked(PyObject *object) { return !PyObject_GC_IsTracked(object); }

static int untrack_row(PyObject *items) {
    if (!PyTuple_CheckExact(items)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++)
        if (!is_untracked(PyTuple_GET_ITEM(items, i))) return 0;
    PyObject_GC_UnTrack(items);
    return 1;
}

static void untrack_chars(PyObject *expr) {
    if (Py_IS_TYPE(expr, shapes[CHARS].type)) PyObject_GC_UnTrack(expr);
}

/* The edges of a graph, of which those are characters may still be tracked. */
INTERNAL int untrack_edges(PyObject *rows) {
    if (!PyTuple_CheckExact(rows)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        PyObject *row = PyTuple_GET_ITEM(rows, i);
        if (!PyTuple_CheckExact(row)) return 0;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(row); k++) {
            PyObject *edge = PyTuple_GET_ITEM(row, k);
            if (PyTuple_CheckExact(edge) && PyTuple_GET_SIZE(edge) == 2) untrack_chars(PyTuple_GET_ITEM(edge, 0));
            untrack_row(edge);
        }
        untrack_row(row);
    }
    return untrack_row(rows);
}

static int untrack_parts(PyObject *parts) {
    if (!PyTuple_CheckExact(parts)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        if (Py_IS_TYPE(part, shapes[PART].type) && is_untracked(FIELD(part, PART, 0))) PyObject_GC_UnTrack(part);
    }
    return untrack_row(parts);
}

static int joined_is_untracked(PyObject *expr) {
    return untrack_parts(FIELD(expr, JOINED, 0)) && is_untracked(FIELD(expr, JOINED, 1)) && is_untracked(FIELD(expr, JOINED, 2)) &&
           is_untracked(FIELD(expr, JOINED, 5)) && is_untracked(FIELD(expr, JOINED, 6));
}

/* Untrack an expression whose parts have been lowered, and so untracked where they can be. */
INTERNAL void untrack(int shape, PyObject *expr) {
    int leads_to_no_rule = shape == LITERAL || shape == BYTES || shape == CHARS || shape == WORDS;
    if (shape == SEQ) leads_to_no_rule = untrack_row(FIELD(expr, SEQ, 0));
    if (shape == ALT) leads_to_no_rule = untrack_row(FIELD(expr, ALT, 0));
    if (shape == REPEAT) leads_to_no_rule = is_untracked(FIELD(expr, REPEAT, 0));
    if (shape == GRAPH) leads_to_no_rule = untrack_edges(FIELD(expr, GRAPH, 0)) && untrack_row(FIELD(expr, GRAPH, 1));
    if (shape == JOINED) leads_to_no_rule = joined_is_untracked(expr);
    if (leads_to_no_rule) PyObject_GC_UnTrack(expr);
}
