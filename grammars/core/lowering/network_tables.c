/* See network_tables.h. */

#include "network_tables.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

static uint32_t hash_words(const int32_t *key, int32_t length) {
    uint64_t h = 0x9E3779B97F4A7C15ull + length;
    for (int32_t i = 0; i < length; i++) {
        h = (h ^ (uint32_t)key[i]) * 0xFF51AFD7ED558CCDull;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static int grow_memo(Memo *m) {
    if ((uint32_t)m->entries.size * 2 < m->index.capacity) return 0;
    uint32_t capacity = m->index.capacity ? m->index.capacity * 2 : 512;
    int32_t *slots = malloc(capacity * sizeof *slots);
    if (!slots) return NO_MEMORY;
    memset(slots, 0xFF, capacity * sizeof *slots);
    for (int32_t i = 0; i < m->entries.size; i++) {
        uint32_t at = AT(m->entries, Entry, i).hash & (capacity - 1);
        while (slots[at] >= 0) at = (at + 1) & (capacity - 1);
        AT(m->entries, Entry, i).slot = at;
        slots[at] = i;
    }
    free(m->index.slots);
    m->index = (Index){slots, capacity};
    return 0;
}

/* Room for a key at the end of the keys, to be filled and then interned; NULL without memory. */
INTERNAL int32_t *new_key(Memo *m, int32_t length) {
    if (reserve(&m->keys, length, sizeof(int32_t))) return NULL;
    return (int32_t *)m->keys.data + m->keys.size;
}

/* The entry of the new key, which is dropped where it was known; the value of a new entry is UNKNOWN. */
INTERNAL int32_t intern_key(Memo *m, int32_t length) {
    if (grow_memo(m)) return no_memory();
    const int32_t *keys = m->keys.data, *key = keys + m->keys.size;
    uint32_t hash = hash_words(key, length), mask = m->index.capacity - 1, at = hash & mask;
    for (int32_t i; (i = m->index.slots[at]) >= 0; at = (at + 1) & mask) {
        const Entry *e = &AT(m->entries, Entry, i);
        if (e->hash == hash && e->length == length && !memcmp(keys + e->offset, key, length * sizeof *key)) return i;
    }
    const Entry made = {hash, at, m->keys.size, length, UNKNOWN};
    if (append(&m->entries, &made, 1, sizeof made)) return no_memory();
    m->keys.size += length;
    return m->index.slots[at] = m->entries.size - 1;
}

INTERNAL void clear_memo(Memo *m) {
    for (int32_t i = 0; i < m->entries.size; i++) m->index.slots[AT(m->entries, Entry, i).slot] = -1;
    m->keys.size = m->entries.size = 0;
}

INTERNAL void free_memo(Memo *m) {
    free(m->keys.data);
    free(m->entries.data);
    free(m->index.slots);
}

INTERNAL int32_t class_id(Tables *t, const Class *set) {
    int32_t *key = new_key(&t->class_ids, CLASS_WORDS);
    if (!key) return no_memory();
    memcpy(key, set, sizeof *set);
    int32_t found = intern_key(&t->class_ids, CLASS_WORDS);
    if (found == t->classes.size && append(&t->classes, set, 1, sizeof *set)) return no_memory();
    return found;
}

INTERNAL int32_t byte_class(Tables *t, int byte) {
    if (!t->byte_classes[byte]) {
        Class set = {{0}};
        set.word[byte >> 5] = 1u << (byte & 31);
        t->byte_classes[byte] = class_id(t, &set) + 1;
    }
    return t->byte_classes[byte] - 1;
}

/* The class of a Python int of 256 bits. */
INTERNAL int32_t mask_class(Tables *t, PyObject *mask) {
    if (!PyLong_Check(mask)) return PyErr_SetString(PyExc_TypeError, "a set of bytes is an int"), NO_MEMORY;
    PyObject *known = PyDict_GetItemWithError(t->masks, mask);
    if (known) return (int32_t)PyLong_AsLong(known);
    if (PyErr_Occurred()) return NO_MEMORY;
    PyObject *bytes = PyObject_CallMethod(mask, "to_bytes", "is", (int)sizeof(Class), "little");
    if (!bytes) return NO_MEMORY;
    Class set = {{0}};
    for (size_t i = 0; i < sizeof set; i++)
        set.word[i >> 2] |= (uint32_t)(uint8_t)PyBytes_AS_STRING(bytes)[i] << (i & 3) * 8;
    Py_DECREF(bytes);
    int32_t found = class_id(t, &set);
    PyObject *number = found < 0 ? NULL : PyLong_FromLong(found);
    int failed = !number || PyDict_SetItem(t->masks, mask, number);
    Py_XDECREF(number);
    return failed ? NO_MEMORY : found;
}

static int32_t new_rule(Tables *t, PyObject *rule) {
    const int32_t unbuilt = -1, made = t->entries.size;
    PyObject *number = PyLong_FromLong(made);
    int failed = !number || PyDict_SetItem(t->rule_ids, rule, number) || PyList_Append(t->rules, rule);
    Py_XDECREF(number);
    if (failed) return NO_MEMORY;
    return append(&t->entries, &unbuilt, 1, sizeof unbuilt) ? no_memory() : made;
}

INTERNAL int32_t rule_id(Tables *t, PyObject *rule) {
    PyObject *known = PyDict_GetItemWithError(t->rule_ids, rule);
    if (known) return (int32_t)PyLong_AsLong(known);
    return PyErr_Occurred() ? NO_MEMORY : new_rule(t, rule);
}

/* The number of a text by the object that has its pieces. */
INTERNAL int32_t text_id(Tables *t, PyObject *pieces) {
    const Py_ssize_t count = PyList_GET_SIZE(t->texts);
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyList_GET_ITEM(t->texts, i) == pieces) return (int32_t)i;
    return PyList_Append(t->texts, pieces) ? NO_MEMORY : (int32_t)count;
}

INTERNAL int32_t reserve_edges(Tables *t, int32_t count) {
    int32_t offset = t->edges.size;
    if (reserve(&t->edges, count, sizeof(int32_t))) return no_memory();
    if (count) memset((int32_t *)t->edges.data + offset, 0, count * sizeof(int32_t));
    t->edges.size += count;
    return offset;
}

INTERNAL void free_tables(Tables *t) {
    Array *arrays[] = {&t->nodes, &t->edges, &t->classes, &t->entries, &t->marks};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]->data);
    free_memo(&t->class_ids);
    Py_XDECREF(t->rules);
    Py_XDECREF(t->rule_ids);
    Py_XDECREF(t->masks);
    Py_XDECREF(t->texts);
    free(t);
}
