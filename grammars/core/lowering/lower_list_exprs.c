/* See lower_list_exprs.h. */

#include "lower_list_exprs.h"
#include "../base/python_call_arguments.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_expr_fields.h"
#include "lower_exprs.h"
#include "rule_lowering.h"
#include "network_tables.h"

static int32_t lower_row(Lowering *l, PyObject *items, int32_t after, Scope scope) {
    const Scope inner = {scope.loop, 0};
    Py_ssize_t i = row_size(items);
    if (i < 0) return FAILED;
    while (i-- && after >= 0) after = lower(l, item_at(items, i), after, inner);
    return after;
}

INTERNAL int32_t lower_seq(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    return lower_row(l, FIELD(expr, SEQ, 0), after, scope);
}

/* What is repeated: an expression, after a separator or alone. Only what is alone learns by what it is repeated. */
typedef struct { PyObject *separator, *item; } Item;

static int32_t lower_repeated(Lowering *l, Item item, int32_t after, Scope scope) {
    if (!item.separator) return lower(l, item.item, after, scope);
    const Scope inner = {scope.loop, 0};
    after = lower(l, item.item, after, inner);
    return after < 0 ? FAILED : lower(l, item.separator, after, inner);
}

static int32_t lower_star(Lowering *l, Item item, int32_t minimum, int32_t after, Scope scope) {
    int32_t offset = reserve_edges(l->tables, 2);
    if (offset < 0) return FAILED;
    EDGE(offset) = EDGE(offset + 1) = after;
    int32_t again = add_node(l, SPLIT, offset, 2, 0, scope.loop);
    if (again < 0) return FAILED;
    int32_t body = lower_repeated(l, item, again, (Scope){scope.loop, 1});
    if (body < 0) return FAILED;
    EDGE(offset) = body;
    return minimum ? body : again;
}

static int32_t lower_unrolled(Lowering *l, Item item, int32_t minimum, int32_t maximum, int32_t after, Scope scope) {
    int32_t start = after, base = l->targets.size, copies = l->copies;
    l->copies *= maximum ? maximum : 1;
    for (int32_t left = 1; left <= maximum; left++) {
        start = lower_repeated(l, item, start, (Scope){scope.loop, 0});
        if (maximum - left < minimum && start >= 0) continue;
        if (push_target(l, start) || push_target(l, after)) return FAILED;
        start = split(l, base, scope.loop);
    }
    l->copies = copies;
    return start;
}

static int32_t lower_loop(Lowering *l, Item item, int32_t minimum, int32_t maximum, int32_t after, Scope scope) {
    int32_t loop = add_node(l, LOOP, 0, minimum, maximum, -1);
    int32_t next = loop < 0 ? FAILED : add_node(l, NEXT, loop, 0, 0, loop);
    if (next < 0) return FAILED;
    int32_t body = lower_repeated(l, item, next, (Scope){loop, 2});
    if (body < 0) return FAILED;
    LOWERED(loop).a = body;
    LOWERED(loop).loop = loop;
    return add_node(l, ENTER, loop, after, 0, scope.loop);
}

/* An item that is never empty, so many times; -1 is no bound. */
static int32_t lower_times(Lowering *l, Item item, int32_t minimum, int32_t maximum, int32_t after, Scope scope) {
    if (maximum < 0 && minimum <= 1) return lower_star(l, item, minimum, after, scope);
    if (maximum >= 0 && maximum <= UNROLLED && l->copies * maximum <= MOST_COPIES) return lower_unrolled(l, item, minimum, maximum, after, scope);
    return lower_loop(l, item, minimum, maximum, after, scope);
}

INTERNAL int32_t lower_repeat(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    int32_t minimum, maximum;
    if (as_bound(FIELD(expr, REPEAT, 1), &minimum) || as_bound(FIELD(expr, REPEAT, 2), &maximum)) return FAILED;
    return lower_times(l, (Item){NULL, FIELD(expr, REPEAT, 0)}, minimum, maximum, after, scope);
}

typedef struct {
    PyObject *parts, *extra, *separator, *opening, *closing; /* `extra` is NULL where there is none */
    int32_t minimum, maximum, count, width;                  /* so many parts; so many numbers of members matter */
} List;

static int read_list(PyObject *expr, List *list) {
    list->parts = FIELD(expr, JOINED, 0);
    list->extra = FIELD(expr, JOINED, 1) == Py_None ? NULL : FIELD(expr, JOINED, 1);
    list->separator = FIELD(expr, JOINED, 2);
    if (as_bound(FIELD(expr, JOINED, 3), &list->minimum)) return FAILED;
    if (as_bound(FIELD(expr, JOINED, 4), &list->maximum)) return FAILED;
    list->opening = FIELD(expr, JOINED, 5);
    list->closing = FIELD(expr, JOINED, 6);
    Py_ssize_t count = row_size(list->parts);
    if (count < 0) return FAILED;
    list->count = (int32_t)count;
    int32_t bound = list->minimum > list->maximum ? list->minimum : list->maximum;
    list->width = (bound < list->count ? bound : list->count) + 1;
    if (list->width < 2) list->width = 2;
    return 0;
}

/* A part's item, and whether it is required; NULL with an exception. */
static PyObject *part_at(const List *list, int32_t i, int *required) {
    PyObject *part = item_at(list->parts, i);
    if (!Py_IS_TYPE(part, shapes[PART].type) || !FIELD(part, PART, 0) || !FIELD(part, PART, 1)) {
        PyErr_Format(PyExc_TypeError, "%.200s where a part belongs", Py_TYPE(part)->tp_name);
        return NULL;
    }
    *required = PyObject_IsTrue(FIELD(part, PART, 1));
    return *required < 0 ? NULL : FIELD(part, PART, 0);
}

/* What may follow the parts once there are members. */
static int32_t list_extras(Lowering *l, const List *list, int32_t count, int32_t after, Scope scope) {
    int32_t least = list->minimum > count ? list->minimum - count : 0;
    int32_t most = list->maximum < 0 ? -1 : list->maximum - count;
    if (list->maximum >= 0 && most < least) return NOWHERE;
    if (!list->extra || most == 0) return least ? NOWHERE : after;
    return lower_times(l, (Item){list->separator, list->extra}, least, most, after, scope);
}

/* A member, or what follows it; NOWHERE where no number of further members can end the list. */
static int32_t list_member(Lowering *l, const List *list, PyObject *item, int required, int32_t count,
                           const int32_t *column, Scope scope) {
    int32_t base = l->targets.size, rest = column[count + 1 < list->width ? count + 1 : list->width - 1];
    if (rest >= 0 && (list->maximum < 0 || count < list->maximum)) {
        PyObject *before = count ? list->separator : list->opening;
        int32_t member = lower(l, item, rest, scope);
        if (member < 0 || push_target(l, lower(l, before, member, scope))) return FAILED;
    }
    if (!required && column[count] >= 0 && push_target(l, column[count])) return FAILED;
    return l->targets.size > base ? split(l, base, scope.loop) : NOWHERE;
}

static int list_ends(Lowering *l, const List *list, int32_t after, int32_t *column, Scope scope) {
    int32_t closing = lower(l, list->closing, after, scope);
    if (closing < 0) return FAILED;
    for (int32_t count = 1; count < list->width; count++)
        if ((column[count] = list_extras(l, list, count, closing, scope)) == FAILED) return FAILED;
    column[0] = list->minimum ? NOWHERE : after;
    if (list->extra) column[0] = list_member(l, list, list->extra, 0, 0, column, scope);
    return column[0] == FAILED ? FAILED : 0;
}

/* Members right to left; a column has a node for every number of members before, as far as it matters. */
static int list_columns(Lowering *l, const List *list, int32_t after, int32_t *column, Scope scope) {
    int32_t *next = column + list->width, required;
    if (list_ends(l, list, after, column, scope)) return FAILED;
    for (int32_t i = list->count; i--;) {
        PyObject *item = part_at(list, i, &required);
        if (!item) return FAILED;
        for (int32_t count = 0; count < list->width; count++)
            if ((next[count] = list_member(l, list, item, required, count, column, scope)) == FAILED) return FAILED;
        memcpy(column, next, list->width * sizeof *column);
    }
    return 0;
}

static int32_t lower_ordered(Lowering *l, const List *list, int32_t after, Scope scope) {
    int32_t *column = malloc(2 * (size_t)list->width * sizeof *column);
    if (!column) return no_memory();
    int32_t start = list_columns(l, list, after, column, scope) ? FAILED : column[0];
    free(column);
    return start == NOWHERE ? split(l, l->targets.size, scope.loop) : start;
}

/* Lower the parts that are required, or the others, from place `at` of the table on; the place after, or FAILED. */
static int32_t fill_parts(Lowering *l, const List *list, int32_t pick, int32_t at, int wanted) {
    const Scope inner = {pick, 0};
    int32_t table = LOWERED(pick).a + (int32_t)(sizeof(PartTable) / sizeof(int32_t)), required;
    for (int32_t i = 0; i < list->count; i++) {
        PyObject *item = part_at(list, i, &required);
        if (!item) return FAILED;
        if (required != wanted) continue;
        int32_t seen = add_node(l, SEEN, pick, at, 0, pick), start = seen < 0 ? FAILED : lower(l, item, seen, inner);
        if (start < 0) return FAILED;
        EDGE(table + at++) = start;
    }
    return at;
}

static int fill_table(Lowering *l, const List *list, int32_t pick) {
    const Scope inner = {pick, 0};
    int32_t required = fill_parts(l, list, pick, 0, 1), extra = -1;
    if (required < 0 || fill_parts(l, list, pick, required, 0) < 0) return FAILED;
    if (list->extra) {
        int32_t seen = add_node(l, SEEN, pick, list->count, 0, pick);
        extra = seen < 0 ? FAILED : lower(l, list->extra, seen, inner);
        if (extra < 0) return FAILED;
    }
    PartTable *table = (PartTable *)&EDGE(LOWERED(pick).a);
    table->required = required;
    table->least = list->minimum;
    table->most = list->maximum;
    table->extra = extra;
    return 0;
}

static int32_t lower_members(Lowering *l, const List *list, int32_t after, Scope scope) {
    int32_t offset = reserve_edges(l->tables, (int32_t)(sizeof(PartTable) / sizeof(int32_t)) + list->count);
    int32_t pick = offset < 0 ? FAILED : add_node(l, PICK, offset, list->count, 0, l->tables->nodes.size);
    if (pick < 0 || fill_table(l, list, pick)) return FAILED;
    int32_t separator = lower(l, list->separator, pick, (Scope){pick, 0});
    if (separator < 0) return FAILED;
    LOWERED(pick).c = separator;
    int32_t closing = lower(l, list->closing, after, (Scope){scope.loop, 0});
    int32_t opening = closing < 0 ? FAILED : lower(l, list->opening, pick, (Scope){pick, 0});
    return opening < 0 ? FAILED : add_node(l, ENTER, opening, closing, 0, scope.loop);
}

/* The empty list, or a frame around the members; nothing where no list can satisfy the bounds. */
static int32_t lower_unordered(Lowering *l, const List *list, int32_t after, Scope scope) {
    int32_t base = l->targets.size, least = 0, most = list->maximum, required;
    for (int32_t i = 0; i < list->count; i++) {
        if (!part_at(list, i, &required)) return FAILED;
        least += required;
    }
    if (list->minimum > least) least = list->minimum;
    if (!list->extra && (most < 0 || most > list->count)) most = list->count;
    if (!least && push_target(l, after)) return FAILED;
    int able = most < 0 || most >= (least ? least : 1);
    if (able && push_target(l, lower_members(l, list, after, scope))) return FAILED;
    return split(l, base, scope.loop);
}

INTERNAL int32_t lower_joined(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    List list;
    int ordered = PyObject_IsTrue(FIELD(expr, JOINED, 7));
    if (ordered < 0 || read_list(expr, &list)) return FAILED;
    if (!ordered) return lower_unordered(l, &list, after, scope);
    return lower_ordered(l, &list, after, (Scope){scope.loop, 0});
}
