/* See lower_char_classes.h. */

#include "lower_char_classes.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_expr_fields.h"
#include "rule_lowering.h"

typedef struct { uint8_t low, high; } ByteRange;
typedef struct { int32_t length; ByteRange range[4]; } Product;
typedef struct { Class set; int32_t target; } ByteEdge;
static const uint8_t LEAST_BYTES[4] = {0x80, 0x80, 0x80, 0x80}, MOST_BYTES[4] = {0xBF, 0xBF, 0xBF, 0xBF};
#define PRODUCT(i) AT(l->products, Product, i)

static int push_product(Lowering *l, const Product *p) {
    return append(&l->products, p, 1, sizeof *p) ? no_memory() : 0;
}

/* The products of the byte strings from `low` to `high`, whose bytes before `at` are chosen. */
static int push_products(Lowering *l, Product *p, int at, const uint8_t *low, const uint8_t *high) {
    int rest = p->length - at - 1, first = low[at], last = high[at];
    p->range[at] = (ByteRange){low[at], high[at]};
    if (!rest) return push_product(l, p);
    if (first == last) return push_products(l, p, at + 1, low, high);
    if (memcmp(low + at + 1, LEAST_BYTES, rest)) {
        p->range[at] = (ByteRange){low[at], low[at]};
        if (push_products(l, p, at + 1, low, MOST_BYTES)) return FAILED;
        first++;
    }
    int partly = memcmp(high + at + 1, MOST_BYTES, rest) != 0;
    last -= partly;
    if (first <= last) {
        p->range[at] = (ByteRange){(uint8_t)first, (uint8_t)last};
        for (int i = at + 1; i < p->length; i++) p->range[i] = (ByteRange){0x80, 0xBF};
        if (push_product(l, p)) return FAILED;
    }
    if (!partly) return 0;
    p->range[at] = (ByteRange){high[at], high[at]};
    return push_products(l, p, at + 1, LEAST_BYTES, high);
}

/* The UTF-8 bytes of a character beyond ASCII; how many. */
static int utf8_bytes(uint32_t code, uint8_t *out) {
    int length = code > 0xFFFF ? 4 : code > 0x7FF ? 3 : 2;
    for (int i = length - 1; i > 0; i--, code >>= 6) out[i] = 0x80 | (code & 0x3F);
    out[0] = (uint8_t)(0xF00 >> length | code);
    return length;
}

static int push_wide(Lowering *l, uint32_t low, uint32_t high) {
    static const uint32_t limits[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    for (int i = 1; i < 4; i++) {
        uint32_t from = low > limits[i - 1] ? low : limits[i - 1] + 1, to = high < limits[i] ? high : limits[i];
        if (from > to) continue;
        Product p = {.length = 0};
        uint8_t first[4], last[4];
        p.length = utf8_bytes(from, first);
        utf8_bytes(to, last);
        if (push_products(l, &p, 0, first, last)) return FAILED;
    }
    return 0;
}

static int surrogate(int32_t code) { return code >= 0xD800 && code <= 0xDFFF; }

static int char_range(PyObject *range, int32_t *low, int32_t *high) {
    Py_ssize_t size = row_size(range);
    if (size < 0) return FAILED;
    if (size == 2 && (as_bound(item_at(range, 0), low) || as_bound(item_at(range, 1), high))) return FAILED;
    if (size == 2 && !surrogate(*low) && !surrogate(*high) && 0 <= *low && *low <= *high && *high <= 0x10FFFF)
        return 0;
    PyErr_SetString(PyExc_ValueError, "not a range of characters");
    return FAILED;
}

/* Products in order: those that begin alike are neighbours, and others do not overlap. */
static int push_chars(Lowering *l, PyObject *ranges) {
    Py_ssize_t count = row_size(ranges);
    int32_t low, high, before = -1;
    if (count < 0) return FAILED;
    for (Py_ssize_t i = 0; i < count; i++, before = high) {
        if (char_range(item_at(ranges, i), &low, &high)) return FAILED;
        if (low <= before) return PyErr_SetString(PyExc_ValueError, "ranges of characters overlap"), FAILED;
        const Product ascii = {1, {{(uint8_t)low, (uint8_t)(high < 0x7F ? high : 0x7F)}}};
        if (low <= 0x7F && push_product(l, &ascii)) return FAILED;
        if (push_wide(l, low, high)) return FAILED;
    }
    return 0;
}

/* The end of the products from `from` that have one range at `at`. */
static int32_t alike_until(Lowering *l, int32_t from, int32_t to, int at) {
    const ByteRange range = PRODUCT(from).range[at];
    while (from < to && !memcmp(&PRODUCT(from).range[at], &range, sizeof range)) from++;
    return from;
}

static int add_edge(ByteEdge *edges, int count, ByteRange range, int32_t target) {
    const Class set = range_class(range.low, range.high);
    int i = 0;
    while (i < count && edges[i].target != target) i++;
    if (i == count) edges[count++] = (ByteEdge){{{0}}, target};
    for (int w = 0; w < 8; w++) edges[i].set.word[w] |= set.word[w];
    return count;
}

/* The node of the products from `from` to `to`, whose ranges before `at` were matched. */
static int32_t product_trie(Lowering *l, int32_t from, int32_t to, int at, int32_t after, int32_t loop) {
    ByteEdge edges[256];
    int count = 0;
    for (int32_t next; from < to; from = next) {
        next = alike_until(l, from, to, at);
        const Product p = PRODUCT(from);
        int32_t target = at == 3 || at + 1 == p.length ? after : product_trie(l, from, next, at + 1, after, loop);
        if (target < 0) return FAILED;
        count = add_edge(edges, count, p.range[at], target);
    }
    int32_t base = l->targets.size;
    for (int i = 0; i < count; i++)
        if (push_target(l, byte_node(l, &edges[i].set, edges[i].target, loop, 0))) return FAILED;
    return split_shared(l, base, 0, 0, loop);
}

INTERNAL int32_t lower_chars(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    l->products.size = 0;
    if (push_chars(l, FIELD(expr, CHARS, 0))) return FAILED;
    return product_trie(l, 0, l->products.size, 0, after, scope.loop);
}
