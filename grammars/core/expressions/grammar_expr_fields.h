/* Expressions as C reads them: the slots of the dataclasses of `expr.py`, found once by their names. */
#ifndef SGL_CORE_EXPRESSIONS_GRAMMAR_EXPR_FIELDS_H
#define SGL_CORE_EXPRESSIONS_GRAMMAR_EXPR_FIELDS_H

#include "../base/grammar_core_common.h"

enum { MOST_FIELDS = 8 };
enum { LITERAL, BYTES, CHARS, WORDS, SEQ, ALT, REPEAT, JOINED, GRAPH, CALL_RULE, OTHER_THAN, COPIED, PART, ANCHOR, SHAPES };

typedef struct {
    const char *name, *fields[MOST_FIELDS + 1];
    PyTypeObject *type;
    Py_ssize_t offset[MOST_FIELDS];
} Shape;

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))
#define FIELD(object, shape, i) SLOT(object, shapes[shape].offset[i])

INTERNAL_DATA Shape shapes[SHAPES];

INTERNAL int learn_shapes(PyObject *module);
INTERNAL int shape_of(PyObject *expr);
INTERNAL int as_bound(PyObject *number, int32_t *found);
INTERNAL Py_ssize_t row_size(PyObject *items);
INTERNAL PyObject *item_at(PyObject *items, Py_ssize_t i);

#endif
