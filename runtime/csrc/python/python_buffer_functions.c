/* Functions of Python that take buffers of int32, not addresses: of texts, masks and tokens. */

#include "python_arguments.h"
#include "../sampling/suffix_lookup.h"
#include "../sampling/token_sampling.h"

/* places(text, others or None, least): (length, 0 or 1, place) of each match, flat; int32 buffers, see sampling/suffix_lookup.h */
INTERNAL PyObject *py_places(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    Py_buffer text, others = {.buf = NULL, .len = 0};
    if (n != 3) return PyErr_Format(PyExc_TypeError, "%zd arguments", n);
    const long least = PyLong_AsLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &text, PyBUF_C_CONTIGUOUS)) return NULL;
    if (args[1] != Py_None && PyObject_GetBuffer(args[1], &others, PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&text);
        return NULL;
    }
    Match matches[2 * SOUGHT * PLACES];
    const long count = text.len < 4 ? 0 : find_places(text.buf, text.len / 4, others.buf, others.len / 4, least, matches);
    PyBuffer_Release(&text);
    if (others.buf) PyBuffer_Release(&others);
    PyObject *result = PyTuple_New(3 * count);
    for (long i = 0; result && i < 3 * count; i++) {
        PyObject *number = PyLong_FromLong(((long *)matches)[i]);
        if (!number) Py_CLEAR(result);
        else PyTuple_SET_ITEM(result, i, number);
    }
    return result;
}

/* named(text, mask, few): a place of the text or 0; int32 buffers, see sampling/suffix_lookup.h */
INTERNAL PyObject *py_named(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    Py_buffer text, mask;
    if (n != 3) return PyErr_Format(PyExc_TypeError, "%zd arguments", n);
    const long few = PyLong_AsLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &text, PyBUF_C_CONTIGUOUS)) return NULL;
    if (PyObject_GetBuffer(args[1], &mask, PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&text);
        return NULL;
    }
    const long place = named_place(text.buf, text.len / 4, mask.buf, mask.len / 4, few);
    PyBuffer_Release(&text);
    PyBuffer_Release(&mask);
    return PyLong_FromLong(place);
}

/* Buffers of int32 of some rows, NULL and of no length for those without. */
typedef struct {
    Py_buffer *held;
    const int32_t **at;
    int64_t *length;
} Buffers;

/* all: a list of buffers and None, or None. Returns 0 with an error set. */
static int hold_buffers(PyObject *all, Py_ssize_t rows, Buffers *b) {
    if (all != Py_None && !(PyList_Check(all) && PyList_GET_SIZE(all) == rows)) return PyErr_Format(PyExc_ValueError, "%zd rows, and not as many buffers", rows), 0;
    b->held = calloc(rows + 1, sizeof(Py_buffer)), b->at = calloc(rows + 1, sizeof(*b->at)), b->length = calloc(rows + 1, sizeof(int64_t));
    if (!b->held || !b->at || !b->length) return PyErr_NoMemory(), 0;
    for (Py_ssize_t row = 0; all != Py_None && row < rows; row++) {
        PyObject *each = PyList_GET_ITEM(all, row);
        if (each == Py_None) continue;
        if (PyObject_GetBuffer(each, b->held + row, PyBUF_C_CONTIGUOUS)) return 0;
        b->at[row] = b->held[row].buf, b->length[row] = b->held[row].len / 4;
    }
    return 1;
}

static void release_buffers(Buffers *b, Py_ssize_t rows) {
    for (Py_ssize_t row = 0; b->held && row < rows; row++)
        if (b->held[row].obj) PyBuffer_Release(b->held + row);
    free(b->held), free(b->at), free(b->length);
}

static PyObject *sampled(const SampleJob *job) {
    PyObject *ids = PyList_New(job->rows), *peaks = PyList_New(job->rows), *result = NULL;
    for (long row = 0; ids && peaks && row < job->rows; row++) {
        PyObject *id = PyLong_FromLongLong(job->chosen[row]), *peak = PyFloat_FromDouble(job->peak[row]);
        if (id) PyList_SET_ITEM(ids, row, id);
        if (peak) PyList_SET_ITEM(peaks, row, peak);
        if (!id || !peak) goto done;
    }
    if (ids && peaks) result = PyTuple_Pack(2, ids, peaks);
done:
    Py_XDECREF(ids);
    Py_XDECREF(peaks);
    return result;
}

/* sample(logits, stride, width, packed, columns, positions, masks, bans): (tokens, largest logits), two lists; packed and columns are int32
   buffers, positions a list, masks and bans None or lists of int32 buffers and None: see sampling/token_sampling.h */
INTERNAL PyObject *py_sample(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[3];
    if (n != 8 || !PyList_Check(args[5])) return PyErr_Format(PyExc_TypeError, "takes 8 arguments, the sixth a list");
    if (!parse(args, 3, 3, a)) return NULL;
    const Py_ssize_t rows = PyList_GET_SIZE(args[5]);
    Py_buffer packed = {.obj = NULL}, columns = {.obj = NULL};
    Buffers masks = {0}, bans = {0};
    PyObject *result = NULL;
    int64_t *position = calloc(2 * rows + 1, sizeof(int64_t));
    float *peak = calloc(rows + 1, sizeof(float));
    if (!position || !peak) {
        PyErr_NoMemory();
        goto done;
    }
    if (PyObject_GetBuffer(args[3], &packed, PyBUF_C_CONTIGUOUS) || PyObject_GetBuffer(args[4], &columns, PyBUF_C_CONTIGUOUS)) goto done;
    if (packed.len != rows * (Py_ssize_t)sizeof(SamplingParams) || columns.len < a[2] * 4 || a[2] < 1) {
        PyErr_Format(PyExc_ValueError, "%zd rows of %lld columns", rows, a[2]);
        goto done;
    }
    for (Py_ssize_t row = 0; row < rows; row++) position[row] = PyLong_AsLongLong(PyList_GET_ITEM(args[5], row));
    if (PyErr_Occurred() || !hold_buffers(args[6], rows, &masks) || !hold_buffers(args[7], rows, &bans)) goto done;
    const SampleJob job = {POINTER(0), packed.buf, masks.at, masks.length, bans.at, bans.length, position, columns.buf, position + rows, peak, rows, a[2], a[1]};
    if (rows * a[2] > AT_ONCE) {
        Py_BEGIN_ALLOW_THREADS choose(&job);
        Py_END_ALLOW_THREADS
    } else choose(&job); /* sooner done than another thread returns the interpreter */
    result = sampled(&job);
done:
    release_buffers(&masks, rows);
    release_buffers(&bans, rows);
    if (packed.obj) PyBuffer_Release(&packed);
    if (columns.obj) PyBuffer_Release(&columns);
    free(position);
    free(peak);
    return result;
}
