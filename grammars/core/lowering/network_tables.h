/* A network's tables where they are lowered in C, and the memo that makes equal things one. */
#ifndef SGL_CORE_LOWERING_NETWORK_TABLES_H
#define SGL_CORE_LOWERING_NETWORK_TABLES_H

#include "../base/grammar_core_common.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

typedef struct { uint32_t hash, slot; int32_t offset, length, value; } Entry;
typedef struct { Array keys, entries; Index index; } Memo; /* keys are rows of int32 of any length */

typedef struct {
    Array nodes, edges, classes, entries;
    Memo class_ids;
    int32_t byte_classes[256]; /* one more than the class of a single byte, 0 where it is not known yet */
    Array marks; /* for every node the last row of targets that it was seen in */
    int32_t row;
    PyObject *rules, *rule_ids, *masks, *texts; /* of the Python network: a list, dicts to their numbers, and a list */
} Tables;

#define VALUE(memo, entry) AT((memo).entries, Entry, entry).value

INTERNAL int32_t *new_key(Memo *m, int32_t length);
INTERNAL int32_t intern_key(Memo *m, int32_t length);
INTERNAL void clear_memo(Memo *m);
INTERNAL void free_memo(Memo *m);
INTERNAL int32_t class_id(Tables *t, const Class *set);
INTERNAL int32_t byte_class(Tables *t, int byte);
INTERNAL int32_t mask_class(Tables *t, PyObject *mask);
INTERNAL int32_t text_id(Tables *t, PyObject *pieces);
INTERNAL int32_t rule_id(Tables *t, PyObject *rule);
INTERNAL int32_t reserve_edges(Tables *t, int32_t count);
INTERNAL void free_tables(Tables *t);

#endif
