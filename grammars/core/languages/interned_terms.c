/* See interned_terms.h. */

#include "interned_terms.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_expr_fields.h"
#include "../expressions/stack_limit.h"
#include "../lowering/rule_lowering.h"
#include "../lowering/network_tables.h"

enum { TERM_CHARS, TERM_SEQ, TERM_ALT, TERM_REPEAT, TERM_STATE };
enum { EMPTY_TERM, NEVER_TERM };
typedef struct { int32_t item, target; } Step;          /* of a graph */
#define TERM_KEY(t, term) (&AT((t)->keys.keys, int32_t, AT((t)->keys.entries, Entry, term).offset))
#define TERM_KIND(t, term) (*TERM_KEY(t, term))
#define STACKED(i) AT(t->stack, int32_t, i)

static int push_word(Terms *t, int32_t word) {
    return append(&t->stack, &word, 1, sizeof word) ? no_memory() : 0;
}

/* The term of the new key at the end of the keys. */
static int32_t intern_term(Terms *t, int32_t length, int nullable) {
    const Row unknown = {0, -1};
    int32_t term = intern_key(&t->keys, length);
    if (term == t->linear.size) {
        NULLABLE(t, term) = nullable;
        if (append(&t->linear, &unknown, 1, sizeof unknown)) return no_memory();
    }
    return term;
}

static int32_t small_term(Terms *t, int32_t length, int nullable, int32_t kind, int32_t a, int32_t b, int32_t c) {
    int32_t *key = new_key(&t->keys, 4);
    if (!key) return no_memory();
    key[0] = kind, key[1] = a, key[2] = b, key[3] = c;
    return intern_term(t, length, nullable);
}

/* The term of the set whose ranges are the new key of the sets; `ranges` are the same for Python. */
static int32_t set_term(Terms *t, int32_t length, PyObject *ranges) {
    int32_t set = intern_key(&t->set_keys, length);
    if (set < 0) return FAILED;
    if (VALUE(t->set_keys, set) == UNKNOWN) {
        VALUE(t->set_keys, set) = 0;
        PyObject *own = ranges ? Py_NewRef(ranges) : NULL;
        if (!own) {
            const int32_t *key = &AT(t->set_keys.keys, int32_t, AT(t->set_keys.entries, Entry, set).offset);
            own = Py_BuildValue("((ii))", key[0], key[1]);
        }
        int failed = !own || PyList_Append(t->sets, own);
        Py_XDECREF(own);
        if (failed) return FAILED;
    }
    return small_term(t, 2, 0, TERM_CHARS, set, 0, 0);
}

static int32_t char_term(Terms *t, int32_t code) {
    int32_t *key = new_key(&t->set_keys, 2);
    if (!key) return no_memory();
    key[0] = key[1] = code;
    return set_term(t, 2, NULL);
}

static int32_t chars_term(Terms *t, PyObject *ranges) {
    Py_ssize_t count = row_size(ranges);
    if (count < 0) return FAILED;
    if (!count) return NEVER_TERM;
    int32_t *key = new_key(&t->set_keys, (int32_t)count * 2);
    if (!key) return no_memory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *range = item_at(ranges, i);
        if (row_size(range) != 2) return PyErr_SetString(PyExc_ValueError, "a range has two ends"), FAILED;
        if (as_bound(item_at(range, 0), key + 2 * i) || as_bound(item_at(range, 1), key + 2 * i + 1)) return FAILED;
    }
    return set_term(t, (int32_t)count * 2, ranges);
}

static int32_t seq_term(Terms *t, int32_t first, int32_t rest) {
    if (first == EMPTY_TERM || rest == NEVER_TERM) return rest;
    if (rest == EMPTY_TERM || first == NEVER_TERM) return first;
    int32_t base = t->stack.size;
    while (TERM_KIND(t, first) == TERM_SEQ) {
        const int32_t *key = TERM_KEY(t, first);
        first = key[2];
        if (push_word(t, key[1])) return FAILED;
    }
    if (push_word(t, first)) return FAILED;
    for (int32_t i = t->stack.size; i-- > base && rest >= 0;) {
        int32_t head = STACKED(i);
        rest = small_term(t, 3, NULLABLE(t, head) && NULLABLE(t, rest), TERM_SEQ, head, rest, 0);
    }
    t->stack.size = base;
    return rest;
}

INTERNAL int by_number(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* Sort what is on the stack above `base`, each once and NEVER not at all where `drop` says so; how many stay. */
static int32_t sort_stack(Terms *t, int32_t base, int drop) {
    int32_t kept = base, *words = t->stack.data;
    if (t->stack.size > base + 1) qsort(words + base, t->stack.size - base, sizeof *words, by_number);
    for (int32_t i = base; i < t->stack.size; i++)
        if (!(drop && words[i] == NEVER_TERM) && (kept == base || words[i] != words[kept - 1])) words[kept++] = words[i];
    t->stack.size = kept;
    return kept - base;
}

/* Any of the terms above `base` on the stack, which they leave. */
static int32_t alt_term(Terms *t, int32_t base) {
    int32_t count = sort_stack(t, base, 1), nullable = 0;
    t->stack.size = base;
    if (count < 2) return count ? STACKED(base) : NEVER_TERM;
    int32_t *key = new_key(&t->keys, count + 1);
    if (!key) return no_memory();
    key[0] = TERM_ALT;
    for (int32_t i = 0; i < count; i++) nullable |= NULLABLE(t, key[i + 1] = STACKED(base + i));
    return intern_term(t, count + 1, nullable);
}

static int32_t repeat_term(Terms *t, int32_t item, int32_t least, int32_t most) {
    if (most == 0 || item == EMPTY_TERM) return EMPTY_TERM;
    if (item == NEVER_TERM) return least ? NEVER_TERM : EMPTY_TERM;
    if (least == 1 && most == 1) return item;
    return small_term(t, 4, least == 0 || NULLABLE(t, item), TERM_REPEAT, item, least, most);
}

static int32_t state_term(Terms *t, int32_t graph, int32_t state) {
    int32_t at = AT(t->graphs, int32_t, graph) + state;
    return small_term(t, 3, AT(t->accepting, int32_t, at), TERM_STATE, graph, state, 0);
}

static int32_t word_term(Terms *t, PyObject *bytes) {
    if (!PyBytes_Check(bytes)) return PyErr_SetString(PyExc_TypeError, "a literal is bytes"), FAILED;
    PyObject *text = PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes), NULL);
    if (!text) return FAILED;
    int32_t found = EMPTY_TERM;
    for (Py_ssize_t i = PyUnicode_GET_LENGTH(text); i-- > 0 && found >= 0;) {
        int32_t head = char_term(t, (int32_t)PyUnicode_READ_CHAR(text, i));
        found = head < 0 ? FAILED : seq_term(t, head, found);
    }
    Py_DECREF(text);
    return found;
}

static int32_t row_alt(Terms *t, PyObject *items, int32_t (*read)(Terms *, PyObject *)) {
    int32_t base = t->stack.size;
    Py_ssize_t count = row_size(items);
    if (count < 0) return FAILED;
    for (Py_ssize_t i = 0; i < count; i++) {
        int32_t term = read(t, item_at(items, i));
        if (term < 0 || push_word(t, term)) return FAILED;
    }
    return alt_term(t, base);
}

static int32_t row_seq(Terms *t, PyObject *items) {
    int32_t found = EMPTY_TERM;
    for (Py_ssize_t i = row_size(items); i-- > 0;) {
        int32_t head = term_of(t, item_at(items, i));
        found = head < 0 ? FAILED : seq_term(t, head, found);
        if (found < 0) return FAILED;
    }
    return PyErr_Occurred() ? FAILED : found;
}

static int32_t counted_term(Terms *t, PyObject *expr) {
    int32_t item = term_of(t, FIELD(expr, REPEAT, 0)), least, most;
    if (item < 0 || as_bound(FIELD(expr, REPEAT, 1), &least) || as_bound(FIELD(expr, REPEAT, 2), &most)) return FAILED;
    return repeat_term(t, item, least, most);
}

/* Put a graph's steps on the stack: for every state their number, then item and target of each. */
static int push_steps(Terms *t, PyObject *rows) {
    Py_ssize_t states = row_size(rows);
    for (Py_ssize_t i = 0; i < states; i++) {
        Py_ssize_t count = row_size(item_at(rows, i));
        if (count < 0 || push_word(t, (int32_t)count)) return FAILED;
        for (Py_ssize_t k = 0; k < count; k++) {
            PyObject *edge = item_at(item_at(rows, i), k);
            int32_t item, target;
            if (row_size(edge) != 2) return PyErr_SetString(PyExc_ValueError, "an edge is an expression and a target"), FAILED;
            if ((item = term_of(t, item_at(edge, 0))) < 0 || as_bound(item_at(edge, 1), &target)) return FAILED;
            if (target < 0 || target >= states) return PyErr_SetString(PyExc_IndexError, "an edge to no state"), FAILED;
            if (push_word(t, item) || push_word(t, target)) return FAILED;
        }
    }
    return 0;
}

static int32_t graph_term(Terms *t, PyObject *expr) {
    int32_t base = t->stack.size, graph = -1, first;
    PyObject *flags = FIELD(expr, GRAPH, 1);
    Py_ssize_t states = row_size(flags);
    if (states < 0 || push_steps(t, FIELD(expr, GRAPH, 0))) return FAILED;
    if (!states || states != row_size(FIELD(expr, GRAPH, 0)))
        return PyErr_SetString(PyExc_ValueError, "a graph lacks states"), FAILED;
    graph = t->graphs.size, first = t->states.size;
    if (append(&t->graphs, &first, 1, sizeof first)) return no_memory();
    for (int32_t i = 0, at = base; i < states; i++) {
        const Row row = {t->steps.size, STACKED(at)};
        const int32_t final = item_at(flags, i) == Py_True;
        if (append(&t->states, &row, 1, sizeof row) || append(&t->accepting, &final, 1, sizeof final)) return no_memory();
        if (row.count && append(&t->steps, &STACKED(at + 1), row.count, sizeof(Step))) return no_memory();
        at += 1 + 2 * row.count;
    }
    t->stack.size = base;
    return state_term(t, graph, 0);
}

static int32_t term_as(Terms *t, PyObject *expr, int shape) {
    switch (shape) {
        case CHARS: return chars_term(t, FIELD(expr, CHARS, 0));
        case LITERAL: return word_term(t, FIELD(expr, LITERAL, 0));
        case WORDS: return row_alt(t, FIELD(expr, WORDS, 0), word_term);
        case SEQ: return row_seq(t, FIELD(expr, SEQ, 0));
        case ALT: return row_alt(t, FIELD(expr, ALT, 0), term_of);
        case REPEAT: return counted_term(t, expr);
        case GRAPH: return graph_term(t, expr);
    }
    PyErr_Format(PyExc_TypeError, "no language of characters: %.200s", Py_TYPE(expr)->tp_name);
    return FAILED;
}

static int too_deep(Terms *t) {
    if (t->depth < DEEPEST) return check_stack();
    PyErr_SetString(PyExc_RecursionError, "the expression is nested too deeply");
    return 1;
}

/* The term of an expression of characters. */
INTERNAL int32_t term_of(Terms *t, PyObject *expr) {
    int shape = shape_of(expr);
    if (shape < 0 || too_deep(t)) return FAILED;
    t->depth++;
    int32_t found = term_as(t, expr, shape);
    t->depth--;
    return found;
}

static int push_move(Terms *t, int32_t chars, int32_t after) {
    return after < 0 || push_word(t, chars) || push_word(t, after) ? FAILED : 0;
}

/* The moves of a term, each followed by `rest`; 0, or FAILED. */
static int push_moves(Terms *t, int32_t term, int32_t rest) {
    Row row;
    if (linear_of(t, term, &row)) return FAILED;
    for (int32_t i = 0; i < row.count; i++) {
        Move move = AT(t->moves, Move, row.offset + i);
        if (push_move(t, move.chars, seq_term(t, move.after, rest))) return FAILED;
    }
    return 0;
}

static int push_graph_moves(Terms *t, int32_t graph, int32_t state) {
    Row row = AT(t->states, Row, AT(t->graphs, int32_t, graph) + state), inner;
    for (int32_t i = 0; i < row.count; i++) {
        Step step = AT(t->steps, Step, row.offset + i);
        if (linear_of(t, step.item, &inner)) return FAILED;
        int32_t rest = inner.count ? state_term(t, graph, step.target) : EMPTY_TERM;
        if (rest < 0 || push_moves(t, step.item, rest)) return FAILED;
    }
    return 0;
}

static int push_all_moves(Terms *t, int32_t term) {
    const int32_t *key = TERM_KEY(t, term), kind = key[0], a = key[1], b = key[2], c = key[3];
    int32_t parts = AT(t->keys.entries, Entry, term).length - 1, rest;
    switch (kind) {
        case TERM_CHARS: return push_move(t, a, EMPTY_TERM);
        case TERM_ALT:
            for (int32_t i = 1; i <= parts; i++)
                if (push_moves(t, TERM_KEY(t, term)[i], EMPTY_TERM)) return FAILED;
            return 0;
        case TERM_SEQ:
            if (push_moves(t, a, b)) return FAILED;
            return NULLABLE(t, a) ? push_moves(t, b, EMPTY_TERM) : 0;
        case TERM_REPEAT:
            rest = repeat_term(t, a, b > 1 ? b - 1 : 0, c > 0 ? c - 1 : -1);
            return rest < 0 ? FAILED : push_moves(t, a, rest);
    }
    return push_graph_moves(t, a, b);
}

/* Keep the moves above `base` on the stack, each once, as the linear form of a term. */
static int keep_moves(Terms *t, int32_t term, int32_t base) {
    Row row = {t->moves.size, 0};
    clear_memo(&t->seen);
    for (int32_t i = base; i < t->stack.size; i += 2) {
        int32_t *key = new_key(&t->seen, 2);
        if (!key) return no_memory();
        memcpy(key, &STACKED(i), 2 * sizeof *key);
        int32_t entry = intern_key(&t->seen, 2);
        if (entry < 0) return FAILED;
        if (entry < row.count) continue;
        if (append(&t->moves, &STACKED(i), 1, sizeof(Move))) return no_memory();
        row.count++;
    }
    t->stack.size = base;
    AT(t->linear, Row, term) = row;
    return 0;
}

/* All (set of first characters, what must follow) of a term. */
INTERNAL int linear_of(Terms *t, int32_t term, Row *found) {
    if (AT(t->linear, Row, term).count < 0) {
        int32_t base = t->stack.size;
        if (too_deep(t)) return FAILED;
        t->depth++;
        int failed = push_all_moves(t, term) || keep_moves(t, term, base);
        t->depth--;
        if (failed) return FAILED;
    }
    *found = AT(t->linear, Row, term);
    return 0;
}

INTERNAL int begin_terms(Terms *t) {
    const Row none = {0, 0};
    t->sets = PyList_New(0);
    if (!t->sets || small_term(t, 1, 1, -1, 0, 0, 0) < 0 || small_term(t, 1, 0, -2, 0, 0, 0) < 0) return FAILED;
    AT(t->linear, Row, EMPTY_TERM) = AT(t->linear, Row, NEVER_TERM) = none;
    return 0;
}

INTERNAL void end_terms(Terms *t) {
    Array *arrays[] = {&t->linear, &t->moves, &t->graphs, &t->states, &t->accepting, &t->steps, &t->stack};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]->data);
    free_memo(&t->keys);
    free_memo(&t->set_keys);
    free_memo(&t->seen);
    Py_XDECREF(t->sets);
}
