/* See language_graph.h. */

#include "language_graph.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_expr_fields.h"
#include "../expressions/gc_untrack.h"
#include "language_product.h"
#include "interned_terms.h"
#include "../lowering/rule_lowering.h"

/* The classes of a Python int, at the end of an array. */
static int push_classes(Joint *p, Array *to, PyObject *mask) {
    PyObject *bytes = PyObject_CallMethod(mask, "to_bytes", "is", (int)(p->words * sizeof(int32_t)), "little");
    int32_t *row = bytes && PyBytes_Check(bytes) ? more_words(to, p->words) : NULL;
    if (row) memcpy(row, PyBytes_AS_STRING(bytes), p->words * sizeof *row);
    Py_XDECREF(bytes);
    return row ? 0 : FAILED;
}

/* The set of characters of some classes, as Python has it; each is made once and kept in a list. */
static PyObject *chars_of(const Joint *p, int32_t mask, PyObject *chars, PyObject **known) {
    if (known[mask]) return known[mask];
    PyObject *type = (PyObject *)&PyLong_Type;
    PyObject *number = PyObject_CallMethod(type, "from_bytes", "y#s", (const char *)MASK(p, mask),
                                           (Py_ssize_t)(p->words * sizeof(int32_t)), "little");
    if (number) known[mask] = PyObject_CallOneArg(chars, number);
    Py_XDECREF(number);
    return known[mask];
}

/* Number the places from which a text can end, the others -1: forward in order once they are found; how many. */
static int32_t number_useful(const Joint *p, int32_t *numbers) {
    int32_t places = p->order.size, edges = p->edges.size, top = 0, useful = 0;
    int32_t *first = calloc((size_t)places * 2 + 1 + edges, sizeof *first), *work, *sources;
    if (!first) return no_memory();
    work = first + places + 1, sources = work + places;
    for (int32_t i = 0; i < edges; i++) first[AT(p->edges, Lead, i).target]++;
    for (int32_t i = 0; i < places; i++) first[i + 1] += first[i]; /* ends, which become starts */
    for (int32_t i = 0; i < places; i++) {
        Row row = AT(p->edge_rows, Row, i);
        for (int32_t k = 0; k < row.count; k++) sources[--first[AT(p->edges, Lead, row.offset + k).target]] = i;
    }
    for (int32_t i = 0; i < places; i++)
        if ((numbers[i] = accepts(p, i) ? 0 : -1) == 0) work[top++] = i;
    while (top) {
        int32_t at = work[--top];
        for (int32_t k = first[at]; k < first[at + 1]; k++)
            if (numbers[sources[k]] < 0) numbers[sources[k]] = 0, work[top++] = sources[k];
    }
    for (int32_t i = 0; i < places; i++)
        if (!numbers[i]) numbers[i] = useful++;
    free(first);
    return useful;
}

static PyObject *edge_tuple(const Joint *p, Row row, const int32_t *numbers, PyObject *chars, PyObject **known) {
    Py_ssize_t kept = 0, at = 0;
    for (int32_t i = 0; i < row.count; i++) kept += numbers[AT(p->edges, Lead, row.offset + i).target] >= 0;
    PyObject *out = PyTuple_New(kept);
    for (int32_t i = 0; out && i < row.count; i++) {
        Lead lead = AT(p->edges, Lead, row.offset + i);
        if (numbers[lead.target] < 0) continue;
        PyObject *set = chars_of(p, lead.mask, chars, known), *number = PyLong_FromLong(numbers[lead.target]);
        PyObject *edge = set && number ? PyTuple_Pack(2, set, number) : NULL;
        Py_XDECREF(number);
        if (edge) PyTuple_SET_ITEM(out, at++, edge);
        else Py_CLEAR(out);
    }
    return out;
}

/* (edges, accepting) of the useful places. */
static PyObject *graph_of(const Joint *p, const int32_t *numbers, int32_t useful, PyObject *chars) {
    int32_t masks = p->masks.entries.size;
    PyObject **known = calloc(masks + 1, sizeof *known), *edges = PyTuple_New(useful), *flags = PyTuple_New(useful);
    int failed = !known || !edges || !flags;
    for (int32_t i = 0; !failed && i < p->order.size; i++) {
        if (numbers[i] < 0) continue;
        PyObject *out = edge_tuple(p, AT(p->edge_rows, Row, i), numbers, chars, known);
        failed = !out;
        if (out) PyTuple_SET_ITEM(edges, numbers[i], out);
        PyTuple_SET_ITEM(flags, numbers[i], PyBool_FromLong(accepts(p, i)));
    }
    for (int32_t i = 0; known && i < masks; i++) Py_XDECREF(known[i]);
    free(known);
    if (!failed) untrack_edges(edges);
    PyObject *graph = failed ? NULL : PyTuple_Pack(2, edges, flags);
    Py_XDECREF(edges);
    Py_XDECREF(flags);
    return graph ? graph : PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

/* The graph of what was explored; () where it has no text. */
static PyObject *trimmed(const Joint *p, PyObject *chars) {
    int32_t *numbers = malloc((p->order.size + 1) * sizeof *numbers);
    int32_t useful = numbers ? number_useful(p, numbers) : no_memory();
    PyObject *found = NULL;
    if (useful >= 0) found = numbers[0] < 0 ? PyTuple_New(0) : graph_of(p, numbers, useful, chars);
    free(numbers);
    return found;
}

/* The first state: each expression alone. */
static int32_t start_state(Joint *p, PyObject *included, PyObject *excluded) {
    Array start = {0};
    for (int side = 0; side < 2; side++)
        for (Py_ssize_t i = 0; i < row_size(side ? excluded : included); i++) {
            int32_t term = term_of(&p->terms, item_at(side ? excluded : included, i));
            int32_t part = term < 0 ? FAILED : part_of(p, &term, 1);
            if (part < 0 || append(&start, &part, 1, sizeof part)) return free(start.data), FAILED;
        }
    p->components = start.size;
    int32_t state = intern_with_row(&p->states, &p->state_rows, start.data, start.size);
    free(start.data);
    return state;
}

/* Take over the alphabet, (classes of each set, all classes, characters of classes); the last one, borrowed. */
static PyObject *take_alphabet(Joint *p, PyObject *alphabet) {
    if (!PyTuple_Check(alphabet) || PyTuple_GET_SIZE(alphabet) != 3) {
        PyErr_SetString(PyExc_TypeError, "an alphabet is a tuple of three");
        return NULL;
    }
    PyObject *masks = PyTuple_GET_ITEM(alphabet, 0), *everything = PyTuple_GET_ITEM(alphabet, 1);
    PyObject *bits = PyObject_CallMethod(everything, "bit_length", NULL);
    if (!bits || as_bound(bits, &p->words)) return Py_XDECREF(bits), NULL;
    Py_DECREF(bits);
    p->words = (p->words + 31) / 32;
    if (!(p->both = malloc((p->words + 1) * sizeof *p->both))) return PyErr_NoMemory();
    if (push_classes(p, &p->everything, everything)) return NULL;
    if (row_size(masks) != PyList_GET_SIZE(p->terms.sets))
        return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "a set lacks its classes"), NULL);
    for (Py_ssize_t i = 0; i < row_size(masks); i++)
        if (push_classes(p, &p->set_masks, item_at(masks, i))) return NULL;
    return PyTuple_GET_ITEM(alphabet, 2);
}

static PyObject *joint_graph(Joint *p, PyObject *included, PyObject *excluded, PyObject *alphabet_of) {
    if (row_size(included) < 0 || row_size(excluded) < 0 || begin_terms(&p->terms)) return NULL;
    p->included = (int32_t)row_size(included);
    int32_t start = start_state(p, included, excluded);
    PyObject *alphabet = start < 0 ? NULL : PyObject_CallOneArg(alphabet_of, p->terms.sets);
    PyObject *chars = alphabet ? take_alphabet(p, alphabet) : NULL, *graph = NULL;
    int32_t code = chars ? explore(p, start) : FAILED;
    if (code == TOO_MUCH) graph = Py_NewRef(Py_None);
    else if (!code) graph = trimmed(p, chars);
    Py_XDECREF(alphabet);
    return graph || PyErr_Occurred() ? graph : PyErr_NoMemory();
}

/* combine(included, excluded, least, most, most states, most work, alphabet of a list of sets): edges and flags of the
 * graph of their product; () where it has no text, None where that takes too much. */
INTERNAL PyObject *py_combine(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Joint p = {.components = 0};
    if (check_count(count, 7)) return NULL;
    int32_t *bounds[] = {&p.least, &p.most, &p.most_states, &p.most_work};
    for (int i = 0; i < 4; i++)
        if (as_bound(args[2 + i], bounds[i])) return NULL;
    PyObject *graph = joint_graph(&p, args[0], args[1], args[6]);
    end_joint(&p);
    return graph;
}
