/* Characters as products of ranges of UTF-8 bytes; `charset.utf8_sequences` says which. */

typedef struct { uint8_t low, high; } ByteRange;

typedef struct {
    int length;
    int32_t after, loop;
    ByteRange range[4];
} Product;

static const uint8_t LEAST_BYTES[4] = {0x80, 0x80, 0x80, 0x80}, MOST_BYTES[4] = {0xBF, 0xBF, 0xBF, 0xBF};

static int push_product(Lowering *l, const Product *p) {
    int32_t after = p->after;
    for (int i = p->length; i-- && after >= 0;) {
        const Class set = range_class(p->range[i].low, p->range[i].high);
        after = byte_node(l, &set, after, p->loop, 0);
    }
    return push_target(l, after);
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

static int push_wide(Lowering *l, uint32_t low, uint32_t high, int32_t after, int32_t loop) {
    static const uint32_t limits[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    for (int i = 1; i < 4; i++) {
        uint32_t from = low > limits[i - 1] ? low : limits[i - 1] + 1, to = high < limits[i] ? high : limits[i];
        if (from > to) continue;
        Product p = {.after = after, .loop = loop};
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

static int push_ascii(Lowering *l, PyObject *ranges, Py_ssize_t count, int32_t after, int32_t loop) {
    Class ascii = {{0}};
    int32_t low, high, some = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (char_range(item_at(ranges, i), &low, &high)) return FAILED;
        const Class part = range_class(low, high < 0x7F ? high : 0x7F);
        for (int w = 0; w < 4; w++) ascii.word[w] |= part.word[w];
        some |= low <= 0x7F;
    }
    return some ? push_target(l, byte_node(l, &ascii, after, loop, 0)) : 0;
}

static int32_t lower_chars(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    PyObject *ranges = FIELD(expr, CHARS, 0);
    Py_ssize_t count = row_size(ranges);
    int32_t base = l->targets.size, low, high;
    if (count < 0 || push_ascii(l, ranges, count, after, scope.loop)) return FAILED;
    for (Py_ssize_t i = 0; i < count; i++)
        if (char_range(item_at(ranges, i), &low, &high) || push_wide(l, low, high, after, scope.loop)) return FAILED;
    return split(l, base, scope.loop);
}
