/* See python_call_arguments.h. */

#include "python_call_arguments.h"
#include "grammar_core_types.h"

INTERNAL int no_memory(void) {
    PyErr_NoMemory();
    return NO_MEMORY;
}

INTERNAL int check_count(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments where %zd belong", given, wanted);
    return -1;
}
