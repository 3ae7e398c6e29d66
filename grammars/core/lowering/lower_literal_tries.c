/* See lower_literal_tries.h. */

#include "lower_literal_tries.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/grammar_expr_fields.h"
#include "lower_exprs.h"
#include "rule_lowering.h"
#include "network_tables.h"

static int32_t literal_rows(Lowering *l, const uint8_t *data, Py_ssize_t length, int32_t after, int32_t loop) {
    while (length--) {
        int32_t id = byte_class(l->tables, data[length]);
        if (id < 0 || (after = add_node(l, BYTE, id, after, 0, loop)) < 0) return FAILED;
    }
    return after;
}

INTERNAL int32_t lower_literal(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    PyObject *data = FIELD(expr, LITERAL, 0);
    if (!PyBytes_Check(data)) return PyErr_SetString(PyExc_TypeError, "a literal is of bytes"), FAILED;
    Py_ssize_t length = PyBytes_GET_SIZE(data), words = (length + 3) / 4;
    int32_t *key = new_key(&l->memo, (int32_t)words + 4);
    if (!key) return no_memory();
    key[0] = KEY_LITERAL, key[1] = after, key[2] = scope.loop, key[3] = (int32_t)length;
    if (words) key[words + 3] = 0;
    memcpy(key + 4, PyBytes_AS_STRING(data), length);
    int32_t entry = intern_key(&l->memo, (int32_t)words + 4);
    if (entry < 0) return FAILED;
    if (VALUE(l->memo, entry) == UNKNOWN)
        VALUE(l->memo, entry) = literal_rows(l, (uint8_t *)PyBytes_AS_STRING(data), length, after, scope.loop);
    return VALUE(l->memo, entry);
}

typedef struct { const void *data; int kind; Py_ssize_t length; } Text; /* of bytes or characters */
typedef struct { uint32_t symbol; int32_t target; } TrieBranch;
typedef struct { int32_t base, final; } Level; /* its branches are those on the stack from `base` */

typedef struct Trier {
    PyObject *expr;
    int32_t after, text, mark;
    Scope scope;
    uint32_t plain[4];
    int32_t (*close)(Lowering *, const struct Trier *, int32_t base, int final);
} Trier;

#define BRANCH(i) AT(l->branches, TrieBranch, i)

static int text_of(PyObject *word, Text *found) {
    if (PyBytes_Check(word)) {
        *found = (Text){PyBytes_AS_STRING(word), PyUnicode_1BYTE_KIND, PyBytes_GET_SIZE(word)};
    } else if (PyUnicode_Check(word)) {
        *found = (Text){PyUnicode_DATA(word), PyUnicode_KIND(word), PyUnicode_GET_LENGTH(word)};
    } else {
        PyErr_SetString(PyExc_TypeError, "a word is of bytes or characters");
        return FAILED;
    }
    return 0;
}

static uint32_t symbol_at(const Text *text, Py_ssize_t i) { return PyUnicode_READ(text->kind, text->data, i); }

static Py_ssize_t common(const Text *left, const Text *right) {
    Py_ssize_t limit = left->length < right->length ? left->length : right->length, i = 0;
    while (i < limit && symbol_at(left, i) == symbol_at(right, i)) i++;
    return i;
}

static int open_level(Lowering *l, int final) {
    const Level level = {l->branches.size, final};
    return append(&l->levels, &level, 1, sizeof level) ? no_memory() : 0;
}

/* Close levels until `keep` are left above `root`; `word` spells the path to the deepest. */
static int close_levels(Lowering *l, const Trier *t, int32_t root, Py_ssize_t keep, const Text *word) {
    while (l->levels.size - root > keep + 1) {
        const Level level = AT(l->levels, Level, --l->levels.size);
        const TrieBranch branch = {symbol_at(word, l->levels.size - root - 1), t->close(l, t, level.base, level.final)};
        if (branch.target < 0) return FAILED;
        l->branches.size = level.base;
        if (append(&l->branches, &branch, 1, sizeof branch)) return no_memory();
    }
    return 0;
}

/* The first node of a trie of sorted words. */
static int32_t lower_trie(Lowering *l, const Trier *t, PyObject *words) {
    int32_t root = l->levels.size, base = l->branches.size;
    Text previous = {"", PyUnicode_1BYTE_KIND, 0}, word;
    Py_ssize_t count = row_size(words);
    if (count < 0 || open_level(l, 0)) return FAILED;
    for (Py_ssize_t i = 0; i < count; i++, previous = word) {
        if (text_of(item_at(words, i), &word)) return FAILED;
        if (close_levels(l, t, root, common(&previous, &word), &previous)) return FAILED;
        while (l->levels.size - root <= word.length)
            if (open_level(l, 0)) return FAILED;
        AT(l->levels, Level, l->levels.size - 1).final = 1;
    }
    if (close_levels(l, t, root, 0, &previous)) return FAILED;
    int32_t start = t->close(l, t, base, AT(l->levels, Level, root).final);
    l->levels.size = root;
    l->branches.size = base;
    return start;
}

static int is_plain(const Trier *t, uint32_t symbol) {
    return symbol < 128 && t->plain[symbol >> 5] >> (symbol & 31) & 1;
}

/* One node for each target of the branches from `base` that plain bytes lead to. */
static int push_grouped(Lowering *l, const Trier *t, int32_t base, int (*fits)(const Trier *, uint32_t)) {
    for (int32_t i = base; i < l->branches.size; i++) {
        if (!fits(t, BRANCH(i).symbol)) continue;
        Class set = {{0}};
        int32_t target = BRANCH(i).target, first = -1;
        for (int32_t k = base; k < l->branches.size; k++) {
            uint32_t byte = BRANCH(k).symbol;
            if (BRANCH(k).target != target || !fits(t, byte)) continue;
            if (first < 0) first = k;
            set.word[byte >> 5] |= 1u << (byte & 31);
        }
        if (first == i && push_target(l, byte_node(l, &set, target, t->scope.loop, 0))) return FAILED;
    }
    return 0;
}

static int is_byte(const Trier *t, uint32_t symbol) { return t->close && symbol < 256; }

static int32_t close_word(Lowering *l, const Trier *t, int32_t base, int final) {
    int32_t stack = l->targets.size;
    if (push_grouped(l, t, base, is_byte)) return FAILED;
    return split_shared(l, stack, final, t->after, t->scope.loop);
}

INTERNAL int32_t lower_words(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    const Trier t = {.expr = expr, .after = after, .scope = scope, .close = close_word};
    return lower_trie(l, &t, FIELD(expr, WORDS, 0));
}

/* The characters that go on from a trie's node and are not plain, in order; a new reference. */
static PyObject *other_branches(Lowering *l, const Trier *t, int32_t base) {
    Py_UCS4 *symbols = malloc((l->branches.size - base + 1) * sizeof *symbols);
    Py_ssize_t count = 0;
    if (!symbols) return PyErr_NoMemory();
    for (int32_t i = base; i < l->branches.size; i++)
        if (!is_plain(t, BRANCH(i).symbol)) symbols[count++] = BRANCH(i).symbol;
    PyObject *found = PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, symbols, count);
    free(symbols);
    return found;
}

/* The expression that a dict of `NameComplement` has for some characters; takes the reference to them. */
static PyObject *spelling(PyObject *dict, PyObject *key) {
    PyObject *found = key && PyDict_Check(dict) ? PyDict_GetItemWithError(dict, key) : NULL;
    if (!found && key && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, key);
    Py_XDECREF(key);
    return found;
}

/* Where a text leaves the trie: a plain character that does not go on, or another one. */
static int push_leaving(Lowering *l, const Trier *t, int32_t base) {
    Class others = {{t->plain[0], t->plain[1], t->plain[2], t->plain[3]}};
    int some = 0;
    for (int32_t i = base; i < l->branches.size; i++)
        if (is_plain(t, BRANCH(i).symbol)) others.word[BRANCH(i).symbol >> 5] &= ~(1u << (BRANCH(i).symbol & 31));
    for (int w = 0; w < 4; w++) some |= others.word[w] != 0;
    if (some && push_target(l, byte_node(l, &others, t->text, t->scope.loop, t->mark))) return FAILED;
    PyObject *beyond = spelling(FIELD(t->expr, OTHER_THAN, 3), other_branches(l, t, base));
    return beyond ? push_target(l, lower(l, beyond, t->text, t->scope)) : FAILED;
}

static int32_t close_name(Lowering *l, const Trier *t, int32_t base, int final) {
    int32_t stack = l->targets.size;
    if (push_leaving(l, t, base) || push_grouped(l, t, base, is_plain)) return FAILED;
    for (int32_t i = base; i < l->branches.size; i++) {
        const TrieBranch branch = BRANCH(i);
        if (is_plain(t, branch.symbol)) continue;
        PyObject *expr = spelling(FIELD(t->expr, OTHER_THAN, 4), PyUnicode_FromOrdinal(branch.symbol));
        if (!expr || push_target(l, lower(l, expr, branch.target, t->scope))) return FAILED;
    }
    return split_shared(l, stack, !final, t->after, t->scope.loop);
}

INTERNAL int32_t lower_other_than(Lowering *l, PyObject *expr, int32_t after, Scope scope) {
    const Scope inner = {scope.loop, 0};
    Trier t = {.expr = expr, .after = after, .scope = inner, .close = close_name};
    if (as_bound(FIELD(expr, OTHER_THAN, 5), &t.mark)) return FAILED;
    int32_t plain = mask_class(l->tables, FIELD(expr, OTHER_THAN, 1));
    t.text = plain < 0 ? FAILED : lower(l, FIELD(expr, OTHER_THAN, 2), after, inner);
    if (t.text < 0) return FAILED;
    memcpy(t.plain, &AT(l->tables->classes, Class, plain), sizeof t.plain);
    return lower_trie(l, &t, FIELD(expr, OTHER_THAN, 0));
}
