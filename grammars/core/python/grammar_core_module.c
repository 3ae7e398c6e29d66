/* What Python calls without ctypes: a network's tables as a capsule. Their caller holds the grammar's lock. */

#include "../base/grammar_core_common.h"
#include "../automaton/automaton_core.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_exprs.h"
#include "../expressions/grammar_expr_fields.h"
#include "../expressions/grammar_expr_traversal.h"
#include "../languages/language_graph.h"
#include "../lowering/lower_exprs.h"
#include "../lowering/network_tables.h"
#include "python_expr_functions.h"
#include "lark_parser.h"
#include "text_blocks.h"
#include "piece_functions.h"

static void drop_tables(PyObject *capsule) { free_tables(PyCapsule_GetPointer(capsule, "tables")); }
static Tables *tables_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, "tables"); }

/* learn(module): the classes and constants of expressions. */
static PyObject *py_learn(PyObject *self, PyObject *module) {
    (void)self;
    if (learn_shapes(module) || learn_constants(module)) return NULL;
    Py_RETURN_NONE;
}

/* tables(rules, rule_ids, texts): empty tables that keep a list of rules, the dict of their numbers, and the list of
 * texts that are copied from up to date. */
static PyObject *py_tables(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (check_count(count, 3)) return NULL;
    if (!PyList_Check(args[0]) || !PyDict_Check(args[1]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "the rules are a list, their numbers a dict, the texts a list");
        return NULL;
    }
    Tables *t = calloc(1, sizeof *t);
    if (!t) return PyErr_NoMemory();
    t->rules = Py_NewRef(args[0]);
    t->rule_ids = Py_NewRef(args[1]);
    t->texts = Py_NewRef(args[2]);
    t->masks = PyDict_New();
    PyObject *capsule = t->masks ? PyCapsule_New(t, "tables", drop_tables) : NULL;
    if (!capsule) free_tables(t);
    return capsule;
}

/* rule_id(tables, rule) */
static PyObject *py_rule_id(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Tables *t = check_count(count, 2) ? NULL : tables_of(args[0]);
    int32_t found = t ? rule_id(t, args[1]) : NO_MEMORY;
    return found < 0 ? NULL : PyLong_FromLong(found);
}

/* The number of a rule of the tables; -1 with an exception. */
static int32_t rule_number(const Tables *t, PyObject *number) {
    int32_t rule;
    if (as_bound(number, &rule)) return -1;
    if (0 <= rule && rule < t->entries.size) return rule;
    PyErr_SetString(PyExc_IndexError, "no such rule");
    return -1;
}

/* entry(tables, rule): its first node, -1 where it is not lowered yet. */
static PyObject *py_entry(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const Tables *t = check_count(count, 2) ? NULL : tables_of(args[0]);
    int32_t rule = t ? rule_number(t, args[1]) : -1;
    return rule < 0 ? NULL : PyLong_FromLong(AT(t->entries, int32_t, rule));
}

/* lower(tables, rule, body) */
static PyObject *py_lower(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Tables *t = check_count(count, 3) ? NULL : tables_of(args[0]);
    int32_t rule = t ? rule_number(t, args[1]) : -1;
    if (rule < 0 || lower_rule(t, rule, args[2]) < 0) return NULL;
    Py_RETURN_NONE;
}

/* read(tables, which): nodes, edges, classes or entries as bytes. */
static PyObject *py_read(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const Tables *t = check_count(count, 2) ? NULL : tables_of(args[0]);
    int32_t which;
    if (!t || as_bound(args[1], &which)) return NULL;
    if (which < 0 || which > 3) return PyErr_SetString(PyExc_IndexError, "no such table"), NULL;
    const Array *arrays[] = {&t->nodes, &t->edges, &t->classes, &t->entries};
    const size_t items[] = {sizeof(Node), sizeof(int32_t), sizeof(Class), sizeof(int32_t)};
    return PyBytes_FromStringAndSize(arrays[which]->data, arrays[which]->size * items[which]);
}

static long long memo_bytes(const Memo *m) {
    return m->keys.capacity * 4LL + m->entries.capacity * (long long)sizeof(Entry) + m->index.capacity * 4LL;
}

/* memory(tables): bytes held, the Python objects not counted. */
static PyObject *py_memory(PyObject *self, PyObject *capsule) {
    (void)self;
    const Tables *t = tables_of(capsule);
    if (!t) return NULL;
    long long words = (long long)t->edges.capacity + t->entries.capacity + t->marks.capacity;
    return PyLong_FromLongLong((long long)sizeof *t + memo_bytes(&t->class_ids) + 4 * words +
                               t->nodes.capacity * (long long)sizeof(Node) + t->classes.capacity * (long long)sizeof(Class));
}

/* extend(core's address, tables): `core_extend` from tables lowered here. */
static PyObject *py_extend(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    const Tables *t = check_count(count, 2) ? NULL : tables_of(args[1]);
    Core *core = t ? PyLong_AsVoidPtr(args[0]) : NULL;
    if (!core) return PyErr_Occurred() ? NULL : (PyErr_SetString(PyExc_ValueError, "no core"), NULL);
    int32_t code = core_extend(core, t->nodes.data, t->nodes.size, t->edges.data, t->edges.size, t->classes.data,
                               t->classes.size, t->entries.data, t->entries.size);
    if (code) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}
#define ONE(name) {#name, py_##name, METH_O, NULL}

static PyMethodDef methods[] = {
    FAST(tables), FAST(rule_id), FAST(entry), FAST(lower), FAST(read), FAST(extend), FAST(combine), ONE(learn), ONE(memory),
    FAST(seq), FAST(alt), ONE(nullable), ONE(calls), ONE(left_calls), FAST(substitute), FAST(may_be_empty), FAST(may_end),
    FAST(size), FAST(read_lark), FAST(find_texts), FAST(texts_of), FAST(halves_of),
    FAST(cuts_of), FAST(merges_known), FAST(pieces), ONE(pieces_size), FAST(piece_end), FAST(add_pieces),
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_core", .m_doc = "The grammars' core.", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
