/* See text_blocks.h. */

#include "text_blocks.h"
#include "../base/python_call_arguments.h"

enum { LENGTH_BYTES = 8 };

typedef struct {
    Py_buffer data, places;
    Py_ssize_t count;
} TextBlock;

static uint64_t length_at(const unsigned char *data) {
    uint64_t length = 0;
    for (int byte = LENGTH_BYTES; byte-- > 0;) length = length << 8 | data[byte];
    return length;
}

/* How many bytes the character takes that begins here; 0 for what is no UTF-8. */
static int utf8_size(const unsigned char *s, Py_ssize_t left) {
    const unsigned char lead = s[0];
    const int size = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (!size || size > left) return 0;
    for (int i = 1; i < size; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    const int low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return size > 1 && (s[1] < low || s[1] > high) ? 0 : size;
}

static int is_utf8(const unsigned char *data, Py_ssize_t length) {
    Py_ssize_t at = 0;
    while (at < length) {
        const int size = utf8_size(data + at, length - at);
        if (!size) return 0;
        at += size;
    }
    return 1;
}

/* Returns the number of places written; the texts up to the first that is not whole in the data, or no UTF-8. */
static Py_ssize_t walk_texts(const unsigned char *data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t most, int32_t *places) {
    Py_ssize_t found = 0;
    while (found < most && size - at >= LENGTH_BYTES) {
        const uint64_t length = length_at(data + at);
        const Py_ssize_t begin = at + LENGTH_BYTES;
        if (length > (uint64_t)(size - begin) || !is_utf8(data + begin, (Py_ssize_t)length)) break;
        places[found++] = (int32_t)begin;
        at = begin + (Py_ssize_t)length;
    }
    return found;
}

/* find_texts(data, start, most): the places of at most so many texts from a byte on, as bytes. */
INTERNAL PyObject *py_find_texts(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Py_buffer data;
    if (check_count(count, 3)) return NULL;
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]), asked = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    PyObject *found = NULL;
    if (start < 0 || start > data.len || data.len > INT32_MAX || asked < 0) {
        PyErr_SetString(PyExc_ValueError, "no place in the data");
    } else {
        const Py_ssize_t room = (data.len - start) / LENGTH_BYTES, most = asked < room ? asked : room;
        found = PyBytes_FromStringAndSize(NULL, most * (Py_ssize_t)sizeof(int32_t));
        if (found) {
            const Py_ssize_t places = walk_texts(data.buf, data.len, start, most, (int32_t *)PyBytes_AS_STRING(found));
            _PyBytes_Resize(&found, places * (Py_ssize_t)sizeof(int32_t));
        }
    }
    PyBuffer_Release(&data);
    return found;
}

/* Whether the places ascend within the data, each with a length before it. */
static int are_places(const TextBlock *block) {
    const int32_t *places = block->places.buf;
    Py_ssize_t least = LENGTH_BYTES;
    for (Py_ssize_t i = 0; i < block->count; i++) {
        if (places[i] < least || places[i] > block->data.len) return 0;
        least = places[i] + LENGTH_BYTES;
    }
    return 1;
}

static void close_block(TextBlock *block) {
    PyBuffer_Release(&block->data);
    PyBuffer_Release(&block->places);
}

static int open_block(TextBlock *block, PyObject *data, PyObject *places) {
    if (PyObject_GetBuffer(data, &block->data, PyBUF_SIMPLE)) return -1;
    if (PyObject_GetBuffer(places, &block->places, PyBUF_SIMPLE)) return PyBuffer_Release(&block->data), -1;
    block->count = block->places.len / (Py_ssize_t)sizeof(int32_t);
    if (are_places(block)) return 0;
    close_block(block);
    PyErr_SetString(PyExc_ValueError, "no places of texts");
    return -1;
}

static const char *text_at(const TextBlock *block, Py_ssize_t index, Py_ssize_t *length) {
    const int32_t *places = block->places.buf;
    const Py_ssize_t stop = index + 1 < block->count ? places[index + 1] - LENGTH_BYTES : block->data.len;
    *length = stop - places[index];
    return (const char *)block->data.buf + places[index];
}

static PyObject *whole_text(const TextBlock *block, Py_ssize_t index) {
    Py_ssize_t length;
    const char *text = text_at(block, index, &length);
    return PyUnicode_DecodeUTF8(text, length, NULL);
}

/* Of two texts, so it is in no cycle. */
static PyObject *pair_of(PyObject *left, PyObject *right) {
    PyObject *pair = PyTuple_Pack(2, left, right);
    if (pair) PyObject_GC_UnTrack(pair);
    return pair;
}

/* Two texts without the space between them, which may not be the first letter; without such a space the text itself. */
static PyObject *halved_text(const TextBlock *block, Py_ssize_t index) {
    Py_ssize_t length;
    const char *text = text_at(block, index, &length);
    const char *space = length > 1 ? memchr(text + 1, ' ', (size_t)length - 1) : NULL;
    if (!space) return PyUnicode_DecodeUTF8(text, length, NULL);
    PyObject *left = PyUnicode_DecodeUTF8(text, space - text, NULL);
    PyObject *right = left ? PyUnicode_DecodeUTF8(space + 1, text + length - space - 1, NULL) : NULL;
    PyObject *pair = right ? pair_of(left, right) : NULL;
    Py_XDECREF(left);
    Py_XDECREF(right);
    return pair;
}

static PyObject *list_of(PyObject *const *args, Py_ssize_t count, PyObject *(*make)(const TextBlock *, Py_ssize_t)) {
    TextBlock block;
    if (check_count(count, 2) || open_block(&block, args[0], args[1])) return NULL;
    PyObject *found = PyList_New(block.count);
    for (Py_ssize_t i = 0; found && i < block.count; i++) {
        PyObject *item = make(&block, i);
        if (item) PyList_SET_ITEM(found, i, item);
        else Py_CLEAR(found);
    }
    close_block(&block);
    return found;
}

/* texts_of(data, places): all texts. */
INTERNAL PyObject *py_texts_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return list_of(args, count, whole_text);
}

/* halves_of(data, places): each text parted at its first space that is not its first letter; one without as it is. */
INTERNAL PyObject *py_halves_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    return list_of(args, count, halved_text);
}

static PyObject *text_part(PyObject *piece, Py_ssize_t start, Py_ssize_t stop) {
    if (PyUnicode_Check(piece)) return PyUnicode_Substring(piece, start, stop);
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(piece) + start, stop - start);
}

/* The known text that equals a part of the piece, borrowed; NULL without one, or with an error. */
static PyObject *known_part(PyObject *known, PyObject *piece, Py_ssize_t start, Py_ssize_t stop) {
    PyObject *part = text_part(piece, start, stop), *found = part ? PyDict_GetItemWithError(known, part) : NULL;
    Py_XDECREF(part);
    return found;
}

static int add_cut(PyObject *found, PyObject *known, PyObject *piece, Py_ssize_t cut, Py_ssize_t length) {
    PyObject *left = known_part(known, piece, 0, cut), *right = left ? known_part(known, piece, cut, length) : NULL;
    if (!right) return PyErr_Occurred() ? -1 : 0;
    PyObject *pair = pair_of(left, right);
    const int failed = !pair || PyList_Append(found, pair);
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* cuts_of(piece, known): the pairs of known texts that make the piece, the shortest left one first. known: each text by itself. */
INTERNAL PyObject *py_cuts_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (check_count(count, 2)) return NULL;
    PyObject *piece = args[0], *known = args[1];
    if (!(PyUnicode_Check(piece) || PyBytes_Check(piece)) || !PyDict_Check(known))
        return PyErr_SetString(PyExc_TypeError, "a text and a dict of texts belong here"), NULL;
    const Py_ssize_t length = PyUnicode_Check(piece) ? PyUnicode_GET_LENGTH(piece) : PyBytes_GET_SIZE(piece);
    PyObject *found = PyList_New(0);
    for (Py_ssize_t cut = 1; found && cut < length; cut++)
        if (add_cut(found, known, piece, cut, length)) Py_CLEAR(found);
    return found;
}

/* Texts by their bytes. slots: indices of texts, -1 for none.  steps: that lookups may still take. */
typedef struct {
    const TextBlock *texts;
    int32_t *slots;
    uint64_t mask;
    Py_ssize_t steps;
} TextTable;

enum { STEPS_OF_EACH = 32 };

static uint64_t hash_bytes(uint64_t hash, const char *text, Py_ssize_t length) {
    for (Py_ssize_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3ULL;
    return hash;
}

/* The slot of the text that is made of two; an empty one where there is no such text, NULL where steps have run out. */
static int32_t *text_slot(TextTable *table, const char *left, Py_ssize_t first, const char *right, Py_ssize_t second) {
    const uint64_t hash = hash_bytes(hash_bytes(0xCBF29CE484222325ULL, left, first), right, second);
    for (uint64_t at = (hash ^ hash >> 32) & table->mask; table->steps-- > 0; at = (at + 1) & table->mask) {
        int32_t *slot = table->slots + at;
        if (*slot < 0) return slot;
        Py_ssize_t length;
        const char *text = text_at(table->texts, *slot, &length);
        if (length == first + second && !memcmp(text, left, (size_t)first) && !memcmp(text + first, right, (size_t)second))
            return slot;
    }
    return NULL;
}

static int has_text(TextTable *table, const char *left, Py_ssize_t first, const char *right, Py_ssize_t second) {
    const int32_t *slot = text_slot(table, left, first, right, second);
    return slot && *slot >= 0;
}

/* 0 where a text is there twice, or steps have run out. */
static int fill_text_table(TextTable *table) {
    memset(table->slots, 0xFF, (table->mask + 1) * sizeof(int32_t));
    for (Py_ssize_t i = 0; i < table->texts->count; i++) {
        Py_ssize_t length;
        const char *text = text_at(table->texts, i, &length);
        int32_t *slot = text_slot(table, text, length, text, 0);
        if (!slot || *slot >= 0) return 0;
        *slot = (int32_t)i;
    }
    return 1;
}

static int are_known_pairs(TextTable *table, const TextBlock *pairs) {
    for (Py_ssize_t i = 0; i < pairs->count; i++) {
        Py_ssize_t length;
        const char *left = text_at(pairs, i, &length);
        const char *space = length > 1 ? memchr(left + 1, ' ', (size_t)length - 1) : NULL;
        if (!space) return 0;
        const Py_ssize_t first = space - left, second = length - first - 1;
        if (!has_text(table, left, first, left, 0) || !has_text(table, space + 1, second, left, 0) ||
            !has_text(table, left, first, space + 1, second))
            return 0;
    }
    return 1;
}

/* 1 if it holds, 0 if not, -1 without memory. */
static int merges_hold(const TextBlock *texts, const TextBlock *pairs) {
    uint64_t size = 16;
    while (size < 2 * (uint64_t)texts->count) size *= 2;
    TextTable table = {texts, malloc(size * sizeof(int32_t)), size - 1, STEPS_OF_EACH * (16 + texts->count + 3 * pairs->count)};
    if (!table.slots) return -1;
    const int found = fill_text_table(&table) && are_known_pairs(&table, pairs);
    free(table.slots);
    return found;
}

/* merges_known(data, places, pairs, pair_places): whether all texts differ, and both halves of each pair, see `halves_of`, are
   such texts, together too. False also where that takes many steps, which texts may be made for. */
INTERNAL PyObject *py_merges_known(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    TextBlock texts, pairs;
    if (check_count(count, 4) || open_block(&texts, args[0], args[1])) return NULL;
    if (open_block(&pairs, args[2], args[3])) return close_block(&texts), NULL;
    int found;
    Py_BEGIN_ALLOW_THREADS
    found = merges_hold(&texts, &pairs);
    Py_END_ALLOW_THREADS
    close_block(&texts);
    close_block(&pairs);
    return found < 0 ? PyErr_NoMemory() : PyBool_FromLong(found);
}
