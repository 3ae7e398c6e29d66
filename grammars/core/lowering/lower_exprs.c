/* See lower_exprs.h. */

#include "lower_exprs.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_expr_fields.h"
#include "../expressions/gc_untrack.h"
#include "../expressions/stack_limit.h"
#include "../expressions/gil_yield.h"
#include "lower_char_classes.h"
#include "lower_list_exprs.h"
#include "lower_literal_tries.h"
#include "rule_lowering.h"
#include "network_tables.h"

static int32_t lower_bytes(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    int32_t plain;
    if (as_bound(FIELD(expr, BYTES, 1), &plain)) return FAILED;
    if (plain == PLAIN_REPEATED) plain = scope.repeated;
    return shared(l, BYTE, mask_class(l->tables, FIELD(expr, BYTES, 0)), after, plain, scope.loop);
}

static int32_t lower_alt(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    PyObject *items = FIELD(expr, ALT, 0);
    int32_t base = l->targets.size;
    Py_ssize_t count = row_size(items);
    if (count < 0) return FAILED;
    for (Py_ssize_t i = 0; i < count; i++)
        if (push_target(l, lower(l, item_at(items, i), after, scope))) return FAILED;
    return split(l, base, scope.loop);
}

static int32_t lower_call(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    return shared(l, CALL, rule_id(l->tables, FIELD(expr, CALL_RULE, 0)), after, 0, scope.loop);
}

/* The whole of a rule: its threads count the states of the pieces, and pop the rule's frame. */
static int32_t lower_copied(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    (void)after;
    if (scope.loop >= 0) return PyErr_SetString(PyExc_ValueError, "copied text belongs into a rule"), FAILED;
    return shared(l, COPY, text_id(l->tables, FIELD(expr, COPIED, 0)), 0, 0, -1);
}

/* The length of a graph's state in edges, its accepting one among them; -1 with an exception. */
static Py_ssize_t graph_edges(PyObject *expr, Py_ssize_t state, int *final) {
    Py_ssize_t count = row_size(item_at(FIELD(expr, GRAPH, 0), state));
    *final = PyObject_IsTrue(item_at(FIELD(expr, GRAPH, 1), state));
    return count < 0 || *final < 0 ? -1 : count + *final;
}

static int32_t graph_states(Lowering *l, PyObject *expr, Py_ssize_t states, int32_t loop) {
    int32_t first = l->tables->nodes.size;
    for (Py_ssize_t i = 0; i < states; i++) {
        int final;
        Py_ssize_t count = graph_edges(expr, i, &final);
        int32_t offset = count < 0 ? FAILED : reserve_edges(l->tables, (int32_t)count);
        if (offset < 0 || add_node(l, SPLIT, offset, (int32_t)count, 0, loop) < 0) return FAILED;
    }
    return first;
}

static int lower_edge(Lowering *l, PyObject *edge, int32_t offset, int32_t first, Py_ssize_t states, Scope scope) {
    int32_t target;
    Py_ssize_t size = row_size(edge);
    if (size < 0) return FAILED;
    if (size != 2) return PyErr_SetString(PyExc_ValueError, "an edge is an expression and a target"), FAILED;
    if (as_bound(item_at(edge, 1), &target)) return FAILED;
    if (target < 0 || target >= states) return PyErr_SetString(PyExc_IndexError, "an edge to no state"), FAILED;
    int32_t start = lower(l, item_at(edge, 0), first + target, scope);
    if (start < 0) return FAILED;
    EDGE(offset) = start;
    return 0;
}

static int32_t lower_graph(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    const Scope inner = {scope.loop, 0};
    PyObject *rows = FIELD(expr, GRAPH, 0);
    Py_ssize_t states = row_size(rows), flags = row_size(FIELD(expr, GRAPH, 1));
    if (states < 0 || flags < 0) return FAILED;
    if (states != flags || !states) return PyErr_SetString(PyExc_ValueError, "a graph lacks states"), FAILED;
    int32_t first = graph_states(l, expr, states, scope.loop);
    if (first < 0) return FAILED;
    for (Py_ssize_t i = 0; i < states; i++) {
        int final;
        Py_ssize_t count = graph_edges(expr, i, &final);
        int32_t offset = LOWERED(first + i).a;
        for (int32_t k = 0; k < count - final; k++)
            if (lower_edge(l, item_at(item_at(rows, i), k), offset + k, first, states, inner)) return FAILED;
        if (final) EDGE(offset + count - 1) = after;
    }
    return first;
}

typedef int32_t (*Lowerer)(Lowering *, PyObject *, int32_t, Scope);

static const Lowerer lowerers[PART] = {
    [LITERAL] = lower_literal, [BYTES] = lower_bytes, [CHARS] = lower_chars, [WORDS] = lower_words,
    [SEQ] = lower_seq,         [ALT] = lower_alt,     [REPEAT] = lower_repeat, [JOINED] = lower_joined,
    [GRAPH] = lower_graph,     [CALL_RULE] = lower_call, [OTHER_THAN] = lower_other_than, [COPIED] = lower_copied};

static int32_t lower_as(int shape, Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    if (check_stack()) return FAILED;
    if (l->depth >= DEEPEST) {
        PyErr_SetString(PyExc_RecursionError, "the expression is nested too deeply");
        return FAILED;
    }
    l->depth++;
    int32_t made = lowerers[shape](l, expr, after, scope);
    l->depth--;
    if (made < 0) return FAILED;
    untrack(shape, expr);
    return made;
}

/* What is one row is remembered by what it says, not by the object that says it. */
static int remembered_by_content(int shape) { return shape == LITERAL || shape == BYTES || shape == CALL_RULE; }

/* The node from which `expr` and then `after` are matched. */
INTERNAL int32_t lower(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    int shape = shape_of(expr);
    if (shape < 0) return FAILED;
    yield_gil();
    if (remembered_by_content(shape)) return lower_as(shape, l, expr, after, scope);
    int32_t *key = new_key(&l->memo, 6);
    if (!key) return no_memory();
    key[0] = KEY_EXPR, key[1] = after, key[2] = scope.loop, key[3] = scope.repeated;
    key[4] = (int32_t)(uintptr_t)expr, key[5] = (int32_t)((uint64_t)(uintptr_t)expr >> 32);
    int32_t entry = intern_key(&l->memo, 6);
    if (entry < 0) return FAILED;
    if (VALUE(l->memo, entry) == UNKNOWN) {
        int32_t made = lower_as(shape, l, expr, after, scope);
        VALUE(l->memo, entry) = made;
    }
    return VALUE(l->memo, entry);
}

static Lowering *spare; /* the last one, for the next rule of any network: its memory is warm */

static void free_lowering(Lowering *l) {
    free_memo(&l->memo);
    free(l->targets.data);
    free(l->branches.data);
    free(l->levels.data);
    free(l->products.data);
    free(l);
}

static Lowering *begin_lowering(Tables *t) {
    Lowering *l = spare ? spare : calloc(1, sizeof *l);
    spare = NULL;
    if (l) l->tables = t, l->copies = 1;
    else no_memory();
    return l;
}

static void end_lowering(Lowering *l) {
    if (spare || l->memo.index.capacity > MOST_SPARE) {
        free_lowering(l);
        return;
    }
    clear_memo(&l->memo);
    l->targets.size = l->branches.size = l->levels.size = l->depth = 0;
    spare = l;
}

/* Lower a rule's body and enter it; the rule's first node. */
INTERNAL int32_t lower_rule(Tables *t, int32_t rule, PyObject *body) {
    Lowering *l = begin_lowering(t);
    if (!l) return FAILED;
    int32_t end = add_node(l, RETURN, 0, 0, 0, -1);
    int32_t entry = end < 0 ? FAILED : lower(l, body, end, (Scope){-1, 0});
    if (entry >= 0) AT(t->entries, int32_t, rule) = entry;
    end_lowering(l);
    return entry;
}
