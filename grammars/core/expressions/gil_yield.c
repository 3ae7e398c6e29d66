/* See gil_yield.h. */

#include "gil_yield.h"

enum { YIELD_EVERY = 64 };

INTERNAL void yield_gil(void) {
    static unsigned taken; /* changed with the GIL alone */
    if (++taken % YIELD_EVERY) return;
    PyThreadState *thread = PyEval_SaveThread();
    PyEval_RestoreThread(thread);
}
