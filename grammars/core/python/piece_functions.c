/* See piece_functions.h. */

#include "piece_functions.h"
#include "../automaton/automaton_core.h"
#include "../base/python_call_arguments.h"
#include "../expressions/grammar_expr_fields.h"
#include "../pieces/piece_automaton.h"

static Pieces *pieces_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, "pieces"); }

static void drop_pieces(PyObject *capsule) {
    Pieces *p = pieces_of(capsule);
    free_pieces(p);
    free(p);
}

/* The characters of a text, each with its flag. */
static uint32_t *symbols_of(PyObject *text, const uint8_t *inner) {
    const Py_ssize_t count = PyUnicode_GET_LENGTH(text);
    const void *data = PyUnicode_DATA(text);
    const int kind = PyUnicode_KIND(text);
    uint32_t *symbols = malloc((count + 1) * sizeof *symbols);
    if (!symbols) return PyErr_NoMemory(), NULL;
    for (Py_ssize_t i = 0; i < count; i++) symbols[i] = PyUnicode_READ(kind, data, i) << 1 | inner[i];
    return symbols;
}

static int check_pieces(PyObject *const *args) {
    const Py_ssize_t most = 1 << 28, length = PyUnicode_Check(args[0]) ? PyUnicode_GET_LENGTH(args[0]) : -1;
    const Py_ssize_t lengths[] = {length + 1, length + 1, length};
    for (int i = 0; i < 3; i++)
        if (length < 0 || !PyBytes_Check(args[i + 1]) || PyBytes_GET_SIZE(args[i + 1]) != lengths[i])
            return PyErr_SetString(PyExc_TypeError, "a text and the flags of its positions belong here"), -1;
    if (length <= most) return 0;
    return PyErr_SetString(PyExc_OverflowError, "the text is too long"), -1;
}

/* pieces(text, starts, ends, inner, ascii): the automaton; the flags are bytes of 0 and 1. */
INTERNAL PyObject *py_pieces(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (check_count(count, 5) || check_pieces(args)) return NULL;
    const int ascii = PyObject_IsTrue(args[4]);
    const uint8_t *flags[3];
    for (int i = 0; i < 3; i++) flags[i] = (const uint8_t *)PyBytes_AS_STRING(args[i + 1]);
    uint32_t *symbols = symbols_of(args[0], flags[2]);
    Pieces *p = symbols ? calloc(1, sizeof *p) : NULL;
    int code = p ? 0 : NO_MEMORY;
    Py_BEGIN_ALLOW_THREADS
    if (p) code = build_pieces(p, symbols, (int32_t)PyUnicode_GET_LENGTH(args[0]), flags[0], flags[1], ascii);
    Py_END_ALLOW_THREADS
    free(symbols);
    PyObject *capsule = code ? PyErr_NoMemory() : PyCapsule_New(p, "pieces", drop_pieces);
    if (!capsule && p) {
        free_pieces(p);
        free(p);
    }
    return capsule;
}

/* pieces_size(pieces): its states, and the bytes that it holds. */
INTERNAL PyObject *py_pieces_size(PyObject *self, PyObject *capsule) {
    (void)self;
    const Pieces *p = pieces_of(capsule);
    return p ? Py_BuildValue("iL", p->states.size, (long long)pieces_memory(p)) : NULL;
}

/* piece_end(pieces, state): the bytes of a shortest way to the end of a piece. */
INTERNAL PyObject *py_piece_end(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const Pieces *p = check_count(count, 2) ? NULL : pieces_of(args[0]);
    int32_t state;
    if (!p || as_bound(args[1], &state)) return NULL;
    if (state < 0 || state >= p->states.size) return PyErr_SetString(PyExc_IndexError, "no such state"), NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, piece_end(p, state, NULL));
    if (found) piece_end(p, state, (uint8_t *)PyBytes_AS_STRING(found));
    return found;
}

/* add_pieces(core's address, pieces): the next of the texts that the core's network speaks of. */
INTERNAL PyObject *py_add_pieces(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const Pieces *p = check_count(count, 2) ? NULL : pieces_of(args[1]);
    Core *core = p ? PyLong_AsVoidPtr(args[0]) : NULL;
    if (!core) return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "no core"), NULL);
    if (add_pieces(core, p)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
