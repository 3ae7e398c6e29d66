/* Expressions over characters as small integers: `terms.py` function by function, with the same numbers. It reads
 * Python objects, so it holds the GIL. Results are terms, or FAILED with an exception set. */
#ifndef SGL_CORE_LANGUAGES_INTERNED_TERMS_H
#define SGL_CORE_LANGUAGES_INTERNED_TERMS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"
#include "../lowering/network_tables.h"

typedef struct { int32_t chars, after; } Move;          /* a set of first characters and what must follow */
typedef struct { int32_t offset, count; } Row;          /* of moves, of steps ...; `count` below zero: not made yet */

typedef struct {
    Memo keys;      /* kind and parts of each term; its value says whether it matches the empty text */
    Memo set_keys;  /* a set's ranges */
    Array linear;   /* Row of `moves` by term */
    Array moves;    /* Move */
    Array graphs;   /* the first of its `states` by graph */
    Array states;   /* Row of `steps`; */
    Array accepting; /* by state */
    Array steps;    /* Step */
    Array stack;    /* int32: rows that are being made */
    Memo seen;
    PyObject *sets; /* a list of ranges as Python has them */
    int32_t depth;
} Terms;

#define NULLABLE(t, term) VALUE((t)->keys, term)

INTERNAL int by_number(const void *left, const void *right);
INTERNAL int32_t term_of(Terms *t, PyObject *expr);
INTERNAL int linear_of(Terms *t, int32_t term, Row *found);
INTERNAL int begin_terms(Terms *t);
INTERNAL void end_terms(Terms *t);

#endif
