/* Functions of the module about the pieces of a text: their automaton is a capsule. */
#ifndef SGL_CORE_PYTHON_PIECE_FUNCTIONS_H
#define SGL_CORE_PYTHON_PIECE_FUNCTIONS_H

#include "../base/grammar_core_common.h"

INTERNAL PyObject *py_pieces(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_pieces_size(PyObject *self, PyObject *capsule);
INTERNAL PyObject *py_piece_end(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_add_pieces(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
