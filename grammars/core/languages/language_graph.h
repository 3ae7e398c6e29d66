/* What Python asks of a product of languages: the graph without dead ends. */
#ifndef SGL_CORE_LANGUAGES_LANGUAGE_GRAPH_H
#define SGL_CORE_LANGUAGES_LANGUAGE_GRAPH_H

#include "../base/grammar_core_common.h"

INTERNAL PyObject *py_combine(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
