/* Texts of vocabularies. Files hold them in one block, each after its length in 8 bytes, the low one first; a text's place
 * is where it begins, as int32. `packed_arrays.py` and `bpe_merges.py` have the same in Python. */
#ifndef SGL_CORE_PYTHON_TEXT_BLOCKS_H
#define SGL_CORE_PYTHON_TEXT_BLOCKS_H

#include "../base/grammar_core_common.h"

INTERNAL PyObject *py_find_texts(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_texts_of(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_halves_of(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_cuts_of(PyObject *self, PyObject *const *args, Py_ssize_t count);
INTERNAL PyObject *py_merges_known(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
