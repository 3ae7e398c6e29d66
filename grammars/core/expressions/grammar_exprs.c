/* See grammar_exprs.h. */

#include "grammar_exprs.h"
#include "grammar_expr_fields.h"
#include "stack_limit.h"
#include "gil_yield.h"

INTERNAL PyObject *nothing_read, *never; /* EMPTY and NEVER of `expr.py` */
INTERNAL PyObject *plain_repeat;         /* `repeat` of `expr.py` */

static int learn_constant(PyObject *module, const char *name, PyObject **found) {
    PyObject *value = PyObject_GetAttrString(module, name);
    if (!value) return -1;
    Py_XSETREF(*found, value);
    return 0;
}

INTERNAL int learn_constants(PyObject *module) {
    return learn_constant(module, "EMPTY", &nothing_read) || learn_constant(module, "NEVER", &never) ||
           learn_constant(module, "repeat", &plain_repeat);
}

static int is_row(PyObject *items) { return PyTuple_Check(items) || PyList_Check(items); }

/* What an expression is; -1, without an exception, for what is none of them or lacks its first field. */
INTERNAL int shape_at(PyObject *expr) {
    for (int shape = 0; shape < SHAPES; shape++)
        if (Py_IS_TYPE(expr, shapes[shape].type)) {
            PyObject *first = FIELD(expr, shape, 0);
            return !first || ((shape == SEQ || shape == ALT) && !is_row(first)) ? -1 : shape;
        }
    return -1;
}

/* An expression of one field, which is taken over; NULL where it is NULL. */
INTERNAL PyObject *made(int shape, PyObject *field) {
    PyTypeObject *type = shapes[shape].type;
    PyObject *expr = field ? type->tp_alloc(type, 0) : NULL;
    if (expr) FIELD(expr, shape, 0) = field;
    else Py_XDECREF(field);
    return expr;
}

static PyObject *made_of(int shape, PyObject *list) { return made(shape, PyList_AsTuple(list)); }

/* Two literals as one in the last place. */
static int join_literal(PyObject *flat, Py_ssize_t last, PyObject *data) {
    PyObject *both = Py_NewRef(FIELD(PyList_GET_ITEM(flat, last), LITERAL, 0));
    PyBytes_Concat(&both, data);
    PyObject *joined = made(LITERAL, both);
    return joined ? PyList_SetItem(flat, last, joined) : -1;
}

/* 1 for what matches no text; -1 with an exception. */
static int push_item(PyObject *flat, PyObject *item) {
    const int shape = shape_at(item);
    if (shape == ALT && !PySequence_Fast_GET_SIZE(FIELD(item, ALT, 0))) return 1;
    if (shape != LITERAL) return PyList_Append(flat, item);
    const Py_ssize_t last = PyList_GET_SIZE(flat) - 1;
    PyObject *data = FIELD(item, LITERAL, 0);
    if (!PyBytes_Check(data)) return PyErr_SetString(PyExc_TypeError, "a literal is bytes"), -1;
    if (last >= 0 && Py_IS_TYPE(PyList_GET_ITEM(flat, last), shapes[LITERAL].type)) return join_literal(flat, last, data);
    return PyBytes_GET_SIZE(data) ? PyList_Append(flat, item) : 0;
}

static int push_items(PyObject *flat, PyObject *expr) {
    if (shape_at(expr) != SEQ) return push_item(flat, expr);
    PyObject *row = FIELD(expr, SEQ, 0);
    int code = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row) && !code; i++) code = push_item(flat, item_at(row, i));
    return code;
}

INTERNAL PyObject *seq_of(PyObject *const *items, Py_ssize_t count) {
    PyObject *flat = PyList_New(0), *found = NULL;
    int code = flat ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && !code; i++) code = push_items(flat, items[i]);
    const Py_ssize_t left = code ? 0 : PyList_GET_SIZE(flat);
    if (code >= 0) found = code ? Py_NewRef(never) : !left ? Py_NewRef(nothing_read)
                         : left == 1 ? Py_NewRef(PyList_GET_ITEM(flat, 0)) : made_of(SEQ, flat);
    Py_XDECREF(flat);
    return found;
}

enum { HASHED_DEPTH = 3 };

static uint64_t own_hash(PyObject *object) {
    const Py_hash_t found = PyObject_Hash(object);
    if (found == -1) PyErr_Clear();
    return (uint64_t)found;
}

/* Equal for equal expressions; it looks only at the ends of rows, and not far down. */
static uint64_t hash_expr(PyObject *expr, int depth) {
    const int shape = shape_at(expr);
    uint64_t h = 0x9E3779B97F4A7C15ull * (shape + 2);
    if (shape < 0) return h ^ own_hash(expr);
    if (shape == GRAPH || shape == OTHER_THAN) return h ^ (uintptr_t)expr;
    PyObject *first = FIELD(expr, shape, 0);
    if (shape == CALL_RULE) return h ^ (uintptr_t)first;
    if (shape == LITERAL || shape == BYTES) return h ^ own_hash(first);
    if (shape == CHARS || shape == WORDS) return h ^ (uint64_t)PyObject_Size(first);
    if (depth && shape == REPEAT) return h ^ hash_expr(first, depth - 1) * 31;
    if (shape != SEQ && shape != ALT) return h;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(first);
    h ^= (uint64_t)count * 0xFF51AFD7ED558CCDull;
    if (!depth || !count) return h;
    h = (h ^ hash_expr(item_at(first, 0), depth - 1)) * 0xC4CEB9FE1A85EC53ull;
    return (h ^ hash_expr(item_at(first, count - 1), depth - 1)) * 0xFF51AFD7ED558CCDull;
}

/* To be left again unless it is an error. */
INTERNAL int deeper(void) {
    yield_gil();
    return check_stack() ? -1 : Py_EnterRecursiveCall(" in a grammar that is nested too deeply");
}

static int same_expr(PyObject *left, PyObject *right);

static int same_rows(PyObject *left, PyObject *right) {
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(left);
    int same = count == PySequence_Fast_GET_SIZE(right);
    for (Py_ssize_t i = 0; i < count && same > 0; i++) same = same_expr(item_at(left, i), item_at(right, i));
    return same;
}

static int same_bounds(PyObject *left, PyObject *right) {
    int same = PyObject_RichCompareBool(FIELD(left, REPEAT, 1), FIELD(right, REPEAT, 1), Py_EQ);
    return same > 0 ? PyObject_RichCompareBool(FIELD(left, REPEAT, 2), FIELD(right, REPEAT, 2), Py_EQ) : same;
}

/* Of two rows, or of two repeats. */
static int same_parts(PyObject *left, PyObject *right, int shape) {
    if (deeper()) return -1;
    int same = shape == REPEAT ? same_bounds(left, right) : same_rows(FIELD(left, shape, 0), FIELD(right, shape, 0));
    if (shape == REPEAT && same > 0) same = same_expr(FIELD(left, REPEAT, 0), FIELD(right, REPEAT, 0));
    Py_LeaveRecursiveCall();
    return same;
}

/* 1, 0, or -1 with an exception. */
static int same_expr(PyObject *left, PyObject *right) {
    if (left == right) return 1;
    if (Py_TYPE(left) != Py_TYPE(right)) return 0;
    const int shape = shape_at(left);
    if ((shape == SEQ || shape == ALT || shape == REPEAT) && shape_at(right) == shape) return same_parts(left, right, shape);
    if (shape == CALL_RULE) return FIELD(left, CALL_RULE, 0) == FIELD(right, CALL_RULE, 0);
    return PyObject_RichCompareBool(left, right, Py_EQ);
}

static int push_alternatives(PyObject *flat, PyObject *expr) {
    if (shape_at(expr) != ALT) return PyList_Append(flat, expr);
    PyObject *row = FIELD(expr, ALT, 0);
    int code = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row) && !code; i++) code = PyList_Append(flat, item_at(row, i));
    return code;
}

typedef struct { uint64_t hash; PyObject *expr; } Distinct;

/* Put an alternative into the table unless it is there; whether it is new, -1 with an exception. */
static int is_new(Distinct *table, size_t mask, PyObject *expr) {
    const uint64_t hash = hash_expr(expr, HASHED_DEPTH);
    yield_gil();
    size_t at = (hash ^ hash >> 29) & mask;
    for (; table[at].expr; at = (at + 1) & mask) {
        int same = table[at].hash == hash ? same_expr(table[at].expr, expr) : 0;
        if (same) return same < 0 ? -1 : 0;
    }
    table[at] = (Distinct){hash, expr};
    return 1;
}

enum { FEW_ALTERNATIVES = 64 };

/* What is left of a list without what comes twice. */
static PyObject *unique_alternatives(PyObject *flat) {
    Distinct few[FEW_ALTERNATIVES], *table = few;
    size_t capacity = 4;
    const Py_ssize_t count = PyList_GET_SIZE(flat);
    while (capacity < (size_t)count * 2) capacity *= 2;
    if (capacity > FEW_ALTERNATIVES && !(table = PyMem_Malloc(capacity * sizeof *table))) return PyErr_NoMemory();
    memset(table, 0, capacity * sizeof *table);
    PyObject *kept = PyList_New(0);
    int code = kept ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && code >= 0; i++) {
        code = is_new(table, capacity - 1, PyList_GET_ITEM(flat, i));
        if (code > 0) code = PyList_Append(kept, PyList_GET_ITEM(flat, i));
    }
    if (table != few) PyMem_Free(table);
    if (code < 0) Py_CLEAR(kept);
    return kept;
}

static PyObject *one_or_alt(PyObject *alternatives) {
    if (!alternatives) return NULL;
    PyObject *found = PyList_GET_SIZE(alternatives) == 1 ? Py_NewRef(PyList_GET_ITEM(alternatives, 0)) : made_of(ALT, alternatives);
    Py_DECREF(alternatives);
    return found;
}

INTERNAL PyObject *alt_of(PyObject *const *items, Py_ssize_t count) {
    if (count == 1) return Py_NewRef(items[0]);
    PyObject *flat = PyList_New(0), *alternatives = NULL;
    int code = flat ? 0 : -1;
    for (Py_ssize_t i = 0; i < count && !code; i++) code = push_alternatives(flat, items[i]);
    if (!code) alternatives = PyList_GET_SIZE(flat) == 1 ? Py_NewRef(flat) : unique_alternatives(flat);
    Py_XDECREF(flat);
    return one_or_alt(alternatives);
}

INTERNAL PyObject *row_made(int shape, PyObject *row) {
    PyObject **items = PySequence_Fast_ITEMS(row);
    return shape == SEQ ? seq_of(items, PySequence_Fast_GET_SIZE(row)) : alt_of(items, PySequence_Fast_GET_SIZE(row));
}

INTERNAL int any_holds(PyObject *row, Holds holds, void *of, int wanted) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); i++) {
        int found = holds(item_at(row, i), of);
        if (found < 0 || found == wanted) return found < 0 ? -1 : 1;
    }
    return 0;
}

INTERNAL int all_hold(PyObject *row, Holds holds, void *of) {
    int failed = any_holds(row, holds, of, 0);
    return failed < 0 ? -1 : !failed;
}

INTERNAL int is_zero(PyObject *number) {
    int32_t value;
    return as_bound(number, &value) ? -1 : value == 0;
}

static int needs_part(PyObject *part, void *of) {
    (void)of;
    return Py_IS_TYPE(part, shapes[PART].type) ? PyObject_IsTrue(FIELD(part, PART, 1)) : 0;
}

static int list_nullable(PyObject *expr) {
    int zero = is_zero(FIELD(expr, JOINED, 3));
    if (zero < 1) return zero;
    int needed = any_holds(FIELD(expr, JOINED, 0), needs_part, NULL, 1);
    return needed < 0 ? -1 : !needed;
}

static int without_name(PyObject *names, PyObject *name) {
    int found = name ? PySequence_Contains(names, name) : -1;
    Py_XDECREF(name);
    return found < 0 ? -1 : !found;
}

static int has_empty_word(PyObject *words) {
    int lacking = without_name(words, PyBytes_FromStringAndSize(NULL, 0));
    return lacking < 0 ? -1 : !lacking;
}

static int row_nullable(PyObject *row, int shape) {
    if (deeper()) return -1;
    int found = shape == SEQ ? all_hold(row, is_nullable, NULL) : any_holds(row, is_nullable, NULL, 1);
    Py_LeaveRecursiveCall();
    return found;
}

INTERNAL int is_nullable(PyObject *expr, void *of) {
    const int shape = shape_at(expr);
    (void)of;
    switch (shape) {
        case LITERAL: return !PyObject_IsTrue(FIELD(expr, LITERAL, 0));
        case WORDS: return has_empty_word(FIELD(expr, WORDS, 0));
        case SEQ:
        case ALT: return row_nullable(FIELD(expr, shape, 0), shape);
        case REPEAT: return is_zero(FIELD(expr, REPEAT, 1));
        case JOINED: return list_nullable(expr);
        case GRAPH: return PyObject_IsTrue(item_at(FIELD(expr, GRAPH, 1), 0));
        case OTHER_THAN: return without_name(FIELD(expr, OTHER_THAN, 0), PyUnicode_FromStringAndSize(NULL, 0));
        default: return shape == ANCHOR;
    }
}
