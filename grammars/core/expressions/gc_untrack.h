/* What Python's collector of cyclic garbage need not look at: expressions that lead to no rule are in no cycle, and
 * compiled grammars hold millions of them, which every full collection would visit while all threads wait. */
#ifndef SGL_CORE_EXPRESSIONS_GC_UNTRACK_H
#define SGL_CORE_EXPRESSIONS_GC_UNTRACK_H

#include "../base/grammar_core_common.h"

INTERNAL int untrack_edges(PyObject *rows);
INTERNAL void untrack(int shape, PyObject *expr);

#endif
