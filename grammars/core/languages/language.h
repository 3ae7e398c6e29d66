/* What Python asks of a product of languages: the graph without dead ends. */
#ifndef SGL_CORE_LANGUAGES_LANGUAGE_H
#define SGL_CORE_LANGUAGES_LANGUAGE_H

#include "../base/common.h"

INTERNAL PyObject *py_combine(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
