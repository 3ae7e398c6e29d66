/* What Python's collector of cyclic garbage need not look at: expressions that lead to no rule are in no cycle, and
 * compiled grammars hold millions of them, which every full collection would visit while all threads wait. */

static int at_rest(PyObject *object) { return !PyObject_GC_IsTracked(object); }

static int settle_row(PyObject *items) {
    if (!PyTuple_CheckExact(items)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++)
        if (!at_rest(PyTuple_GET_ITEM(items, i))) return 0;
    PyObject_GC_UnTrack(items);
    return 1;
}

static void settle_chars(PyObject *expr) {
    if (Py_IS_TYPE(expr, shapes[CHARS].type)) PyObject_GC_UnTrack(expr);
}

/* The edges of a graph, of which those are characters may still be unsettled. */
static int settle_edges(PyObject *rows) {
    if (!PyTuple_CheckExact(rows)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        PyObject *row = PyTuple_GET_ITEM(rows, i);
        if (!PyTuple_CheckExact(row)) return 0;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(row); k++) {
            PyObject *edge = PyTuple_GET_ITEM(row, k);
            if (PyTuple_CheckExact(edge) && PyTuple_GET_SIZE(edge) == 2) settle_chars(PyTuple_GET_ITEM(edge, 0));
            settle_row(edge);
        }
        settle_row(row);
    }
    return settle_row(rows);
}

static int settle_parts(PyObject *parts) {
    if (!PyTuple_CheckExact(parts)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); i++) {
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        if (Py_IS_TYPE(part, shapes[PART].type) && at_rest(FIELD(part, PART, 0))) PyObject_GC_UnTrack(part);
    }
    return settle_row(parts);
}

static int joined_at_rest(PyObject *expr) {
    return settle_parts(FIELD(expr, JOINED, 0)) && at_rest(FIELD(expr, JOINED, 1)) && at_rest(FIELD(expr, JOINED, 2)) &&
           at_rest(FIELD(expr, JOINED, 5)) && at_rest(FIELD(expr, JOINED, 6));
}

/* Settle an expression whose parts have been lowered, and so settled where they can be. */
static void settle(int shape, PyObject *expr) {
    int resting = shape == LITERAL || shape == BYTES || shape == CHARS || shape == WORDS;
    if (shape == SEQ) resting = settle_row(FIELD(expr, SEQ, 0));
    if (shape == ALT) resting = settle_row(FIELD(expr, ALT, 0));
    if (shape == REPEAT) resting = at_rest(FIELD(expr, REPEAT, 0));
    if (shape == GRAPH) resting = settle_edges(FIELD(expr, GRAPH, 0)) && settle_row(FIELD(expr, GRAPH, 1));
    if (shape == JOINED) resting = joined_at_rest(expr);
    if (resting) PyObject_GC_UnTrack(expr);
}
