/* What functions called from Python share: the number of their arguments, and errors. */
#ifndef SGL_CORE_BASE_PYTHON_CALL_ARGUMENTS_H
#define SGL_CORE_BASE_PYTHON_CALL_ARGUMENTS_H

#include "grammar_core_common.h"

INTERNAL int no_memory(void);
INTERNAL int check_count(Py_ssize_t given, Py_ssize_t wanted);

#endif
