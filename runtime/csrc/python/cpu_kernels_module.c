/* The extension module: its functions, and the constants that Python reads. */

#include "python_arguments.h"
#include <sys/mman.h>

#include "../adapters/lora_products.h"
#include "../attention/attention.h"
#include "../attention/latent_attention.h"
#include "../attention/dequantize_e4m3.h"
#include "../attention/attention_topk_select.h"
#include "../base/avx512.h"
#include "../base/cpu_isa.h"
#include "../base/thread_scratch.h"
#include "../base/thread_pool.h"
#include "../elementwise/norm_rope_elementwise.h"
#include "../experts/moe_experts.h"
#include "../files/digested_read.h"
#include "../gemm/dense_gemm.h"
#include "../gemm/gemm.h"
#include "../quantized/pack_weights.h"
#include "../quantized/quantized_groups.h"
#include "../quantized/quantized_gemm.h"
#include "../recurrent/recurrent_layers.h"
#include "../step/decoder_step.h"

INTERNAL int parse(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, long long *out) {
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", wanted, given);
        return 0;
    }
    for (Py_ssize_t i = 0; i < given; i++) out[i] = PyLong_AsLongLong(args[i]);
    return !PyErr_Occurred();
}

/* linear(weight, x, residual, y, rows): residual may be 0, or y */
static PyObject *py_linear(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[5];
    if (!parse(args, n, 5, a)) return NULL;
    Product job = {POINTER(0), POINTER(1), POINTER(2), POINTER(3), a[4], 0, 0, 0};
    Py_BEGIN_ALLOW_THREADS
    product(&job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* digest(file, start, bytes, size, lanes, shared): see files/digested_read.c */
static PyObject *py_digest(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[6];
    if (!parse(args, n, 6, a)) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = digest_pieces(a[0], a[1], POINTER(2), a[3], POINTER(4), a[5]);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(error);
}

/* step(model, step): see the structs of these names */
static PyObject *py_step(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[2];
    if (!parse(args, n, 2, a)) return NULL;
    const Model *model = POINTER(0);
    const Step *step = POINTER(1);
    Py_BEGIN_ALLOW_THREADS
    if (model->kind == BFLOAT16) run_step_bf16(model, step);
    else run_step_f32(model, step);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* mixture(kind, experts, x, y, rows): experts is the struct of that name; y may not be x */
static PyObject *py_mixture(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[5];
    if (!parse(args, n, 5, a)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    DISPATCH(mixture, POINTER(1), POINTER(2), POINTER(3), a[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* adapt(kind, pairs, slots, site, rows, inputs, outputs, x, y): y += what the adapters of the rows make of x; pairs: as in the struct Step */
static PyObject *py_adapt(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[9];
    if (!parse(args, n, 9, a)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (a[0]) adapt_bf16((Adapt_bf16){NULL, POINTER(1), a[3], 0, a[5], a[6], POINTER(7), POINTER(8), NULL, NULL, 0, 0}, POINTER(2), a[4]);
    else adapt_f32((Adapt_f32){NULL, POINTER(1), a[3], 0, a[5], a[6], POINTER(7), POINTER(8), NULL, NULL, 0, 0}, POINTER(2), a[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* The struct of `size` bytes that Python packed, or NULL with an error set. */
static const void *packed(PyObject *bytes, size_t size) {
    if (PyBytes_Check(bytes) && (size_t)PyBytes_GET_SIZE(bytes) == size) return PyBytes_AS_STRING(bytes);
    PyErr_Format(PyExc_TypeError, "takes a struct of %zu bytes", size);
    return NULL;
}

/* advance(job), selective(job), pack_rows(job), pack_codes(job), restore_weight(job), unpack_all(job): the packed structs Linear, Selective,
   RowPacking, CodePacking, RestoreJob and UnpackJob */
#define OF_STRUCT(name, Job) \
    static PyObject *py_##name(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) { \
        const Job *job = n == 1 ? packed(args[0], sizeof(Job)) : PyErr_Format(PyExc_TypeError, "takes 1 argument"); \
        if (!job) return NULL; \
        Py_BEGIN_ALLOW_THREADS name(job); \
        Py_END_ALLOW_THREADS Py_RETURN_NONE; \
    }
OF_STRUCT(advance, Linear)
OF_STRUCT(selective, Selective)
OF_STRUCT(pack_rows, RowPacking)
OF_STRUCT(pack_codes, CodePacking)
OF_STRUCT(restore_weight, RestoreJob)
OF_STRUCT(unpack_all, UnpackJob)

/* convolve(kind, job), gated(kind, job), rates(kind, job): the packed structs Convolve, GatedNorm and Rates */
#define OF_ROWS(name, Job) \
    static PyObject *py_##name(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) { \
        long long a[1]; \
        const Job *job = n == 2 && parse(args, 1, 1, a) ? packed(args[1], sizeof(Job)) : NULL; \
        if (!job) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "takes 2 arguments"); \
        Py_BEGIN_ALLOW_THREADS DISPATCH(name, job); \
        Py_END_ALLOW_THREADS Py_RETURN_NONE; \
    }
OF_ROWS(convolve, Convolve)
OF_ROWS(gated, GatedNorm)
OF_ROWS(rates, Rates)

/* norm(kind, norm, x, stride, y, to, rows, spans, size): norm is the struct of that name; y may be x */
static PyObject *py_norm(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[9];
    if (!parse(args, n, 9, a)) return NULL;
    DISPATCH(norm, POINTER(1), POINTER(2), a[3], POINTER(4), a[5], a[6], a[7], a[8]);
    Py_RETURN_NONE;
}

/* gate(kind, x, gate, stride, rows, size): x *= sigmoid(gate), whose rows are `stride` apart */
static PyObject *py_gate(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[6];
    if (!parse(args, n, 6, a)) return NULL;
    const size_t size = a[0] ? sizeof(bfloat16) : sizeof(float);
    for (long row = 0; row < a[4]; row++) DISPATCH(gate_row, (void *)((char *)POINTER(1) + row * a[5] * size), (void *)((char *)POINTER(2) + row * a[3] * size), a[5]);
    Py_RETURN_NONE;
}

/* activate(kind, activation, x, y, rows, size): y may be x */
static PyObject *py_activate(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[6];
    if (!parse(args, n, 6, a)) return NULL;
    DISPATCH(activate, a[1], POINTER(2), POINTER(3), a[4], a[5]);
    Py_RETURN_NONE;
}

/* activate_and_mul(kind, activation, gate_up, y, rows, size) */
static PyObject *py_activate_and_mul(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[6];
    if (!parse(args, n, 6, a)) return NULL;
    DISPATCH(activate_and_mul, a[1], POINTER(2), POINTER(3), a[4], a[5]);
    Py_RETURN_NONE;
}

/* add(kind, x, y, size, scale): x += y * scale; scale is a float */
static PyObject *py_add(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[4];
    if (!parse(args, n - 1, 4, a)) return NULL;
    const double scale = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    DISPATCH(add, POINTER(1), POINTER(2), (float)scale, a[3]);
    Py_RETURN_NONE;
}

/* rotate(kind, x, stride, table, rows, heads, dim): heads in place; a row of table is 4 * dim / 2 numbers */
static PyObject *py_rotate(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[7];
    if (!parse(args, n, 7, a)) return NULL;
    DISPATCH(rotate, POINTER(1), a[2], POINTER(3), a[4], a[5], a[6]);
    Py_RETURN_NONE;
}

/* attend(kind, q, q_stride, keys, values, out, slots, length, before, rows, kv_heads, group, dim, sinks, eight, scale, softcap,
   v_scale): the last three are floats; softcap and sinks may be 0 */
static PyObject *py_attend(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[15];
    if (!parse(args, n - 3, 15, a)) return NULL;
    const double scale = PyFloat_AsDouble(args[15]), softcap = PyFloat_AsDouble(args[16]), v_scale = PyFloat_AsDouble(args[17]);
    if (PyErr_Occurred()) return NULL;
    if (a[12] < 1 || a[12] > MOST_DIM) return PyErr_Format(PyExc_ValueError, "head_dim %lld", a[12]);
    Attention job = {POINTER(1), POINTER(3), POINTER(4), POINTER(5), POINTER(6), POINTER(7), POINTER(8),
                     a[9], a[10], a[11], a[12], a[2], (float)scale, (float)softcap, POINTER(13), a[14], (float)v_scale};
    Py_BEGIN_ALLOW_THREADS
    DISPATCH(attend, &job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* attend_latent(kind, q, q_stride, rows, out, slots, length, tokens, heads, width, values, eight, scale, row_scale): the last two are floats;
   rows is the pool, rows of `width` numbers, the first `values` of which are mixed */
static PyObject *py_attend_latent(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[12];
    if (!parse(args, n - 2, 12, a)) return NULL;
    const double scale = PyFloat_AsDouble(args[12]), row_scale = PyFloat_AsDouble(args[13]);
    if (PyErr_Occurred()) return NULL;
    if (a[9] < a[10] || a[9] > MOST_ROW || a[10] < 1 || a[10] > MOST_DIM) return PyErr_Format(PyExc_ValueError, "%lld values of rows of %lld", a[10], a[9]);
    Latent job = {{POINTER(1), POINTER(3), POINTER(3), POINTER(4), POINTER(5), POINTER(6), NULL, a[7], 1, a[8], a[9], a[2], (float)(scale * row_scale), 0, 0,
                   a[11], (float)row_scale}, a[10], 0, 1, 0, 0, 0};
    Py_BEGIN_ALLOW_THREADS
    DISPATCH(attend_latent, &job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* choose_tokens(kind, q, q_stride, shares, keys, slots, length, scores, chosen, tokens, heads, dim, width, most, scale): the last is a float; see the
   struct TopkSelect */
static PyObject *py_choose_tokens(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[14];
    if (!parse(args, n - 1, 14, a)) return NULL;
    const double scale = PyFloat_AsDouble(args[14]);
    if (PyErr_Occurred()) return NULL;
    if (a[11] < 1 || a[11] > MOST_DIM) return PyErr_Format(PyExc_ValueError, "keys of %lld numbers", a[11]);
    TopkSelect job = {POINTER(1), POINTER(4), POINTER(3), POINTER(5), POINTER(6), POINTER(7), POINTER(8), a[9], a[10], a[11], a[2], a[12], a[13], 0, (float)scale};
    Py_BEGIN_ALLOW_THREADS
    DISPATCH(topk_select, &job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* headwise(kind, x, x_row, x_head, weight, y, rows, heads, inputs, outputs): see the struct of this name */
static PyObject *py_headwise(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[10];
    if (!parse(args, n, 10, a)) return NULL;
    const Headwise job = {POINTER(1), POINTER(4), POINTER(5), a[6], a[7], a[8], a[9], a[2], a[3]};
    Py_BEGIN_ALLOW_THREADS
    DISPATCH(headwise, &job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* store(kind, k, k_stride, v, v_stride, slots, keys, values, rows, width, eight, k_scale, v_scale): the last two are floats; v may be 0 */
static PyObject *py_store(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[11];
    if (!parse(args, n - 2, 11, a)) return NULL;
    const double k_scale = PyFloat_AsDouble(args[11]), v_scale = PyFloat_AsDouble(args[12]);
    if (PyErr_Occurred()) return NULL;
    DISPATCH(store, POINTER(1), a[2], POINTER(5), POINTER(6), a[8], a[9], a[10], (float)k_scale);
    if (a[3]) DISPATCH(store, POINTER(3), a[4], POINTER(5), POINTER(7), a[8], a[9], a[10], (float)v_scale);
    Py_RETURN_NONE;
}

/* restore(kind, from, slots, count, width, to): numbers of 8 bits of int32 slots, `width` in each, to [count, width] of this kind */
static PyObject *py_restore(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[6];
    if (!parse(args, n, 6, a)) return NULL;
    const Restore job = {POINTER(1), POINTER(2), a[4], a[3], a[4], POINTER(5)};
    Py_BEGIN_ALLOW_THREADS
    DISPATCH(restore, &job);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* use_huge_pages(address, bytes): of memory that is not written yet; nothing happens where the system has none */
static PyObject *py_use_huge_pages(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[2];
    if (!parse(args, n, 2, a)) return NULL;
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, from = ((uintptr_t)a[0] + page - 1) & ~(page - 1), to = ((uintptr_t)a[0] + a[1]) & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE);
#endif
    Py_RETURN_NONE;
}

/* set_int4_way(isa): 0 generic, 1 by AVX2, 2 by AVX512_VNNI; for tests, and no better one than this CPU has */
static PyObject *py_set_int4_way(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[1];
    if (!parse(args, n, 1, a)) return NULL;
    if (a[0] < 0 || a[0] > best_int4_isa()) return PyErr_Format(PyExc_ValueError, "way %lld", a[0]);
    int4_isa = (int)a[0];
    Py_RETURN_NONE;
}

/* set_e4m3_way(isa): 0 generic, 1 by AVX2, 2 by AVX512_VBMI; for tests, and no better one than this CPU has */
static PyObject *py_set_e4m3_way(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[1];
    if (!parse(args, n, 1, a)) return NULL;
    if (a[0] < 0 || a[0] > best_e4m3_isa()) return PyErr_Format(PyExc_ValueError, "way %lld", a[0]);
    e4m3_isa = (int)a[0];
    Py_RETURN_NONE;
}

/* set_dense_way(kind, isa): 1 by AVX2, 2 by AVX-512, 3 by AMX; for tests and SGL_AMX=0, and no better one than this CPU has */
static PyObject *py_set_dense_way(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[2];
    if (!parse(args, n, 2, a)) return NULL;
    if (a[0] < FLOAT32 || a[0] > BFLOAT16 || a[1] < BY_AVX2 || a[1] > best_dense_isa(a[0])) return PyErr_Format(PyExc_ValueError, "way %lld", a[1]);
    dense_isa[a[0]] = (int)a[1];
    Py_RETURN_NONE;
}

static PyObject *py_set_threads(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n) {
    long long a[1];
    if (!parse(args, n, 1, a)) return NULL;
    team.threads = a[0] < 1 ? 1 : a[0] > MOST_THREADS ? MOST_THREADS : (int)a[0];
    Py_RETURN_NONE;
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {METHOD(linear), METHOD(step), METHOD(adapt), METHOD(mixture), METHOD(norm), METHOD(activate), METHOD(activate_and_mul), METHOD(add), METHOD(rotate),
                                METHOD(attend), METHOD(attend_latent), METHOD(choose_tokens), METHOD(places), METHOD(named), METHOD(sample), METHOD(headwise), METHOD(store), METHOD(set_threads), METHOD(set_dense_way), METHOD(set_int4_way), METHOD(set_e4m3_way), METHOD(restore),
                                METHOD(use_huge_pages), METHOD(digest), METHOD(advance), METHOD(selective), METHOD(convolve), METHOD(gated), METHOD(rates), METHOD(gate),
                                METHOD(pack_rows), METHOD(pack_codes), METHOD(restore_weight), METHOD(unpack_all), {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cpu", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) {
    PyObject *made = PyModule_Create(&module);
    pthread_atfork(NULL, NULL, forget_helpers);
    create_scratch_keys();
    if (made) PyModule_AddIntConstant(made, "NATIVE_BFLOAT16", has_native_bfloat16());
    if (made) PyModule_AddIntConstant(made, "AVX512", has_avx512());
    if (made) PyModule_AddIntConstant(made, "VNNI", has_vnni());
    int4_isa = best_int4_isa();
    for (long kind = FLOAT32; kind <= BFLOAT16; kind++) dense_isa[kind] = best_dense_isa(kind);
    /* the best instruction sets for weights as they are: see gemm/dense_gemm.h */
    if (made) PyModule_AddIntConstant(made, "FLOAT32", dense_isa[FLOAT32]);
    if (made) PyModule_AddIntConstant(made, "BFLOAT16", dense_isa[BFLOAT16]);
    fill_float8();
    use_float8_pairs = has_float8_pairs();
    if (made) PyModule_AddIntConstant(made, "FLOAT8_PAIRS", use_float8_pairs);
    fill_e4m3();
    e4m3_isa = best_e4m3_isa();
    if (made) PyModule_AddIntConstant(made, "INT4", int4_isa); /* the best instruction set for int4 weights: see quantized/int4_gemm.c */
    if (made) PyModule_AddIntConstant(made, "E4M3", e4m3_isa); /* the best instruction set to restore numbers of 8 bits: see attention/dequantize_e4m3.c */
    if (made) PyModule_AddIntConstant(made, "MOST_DIM", MOST_DIM);
    if (made) PyModule_AddIntConstant(made, "MOST_ROW", MOST_ROW);
    if (made) PyModule_AddIntConstant(made, "BLOCK", BLOCK);
    if (made) PyModule_AddIntConstant(made, "STEP_ROWS", STEP_ROWS);
    if (made) PyModule_AddIntConstant(made, "DIGEST_LANES", DIGEST_LANES);
    if (made) PyModule_AddIntConstant(made, "DIGEST_PIECE", DIGEST_PIECE);
    if (made) PyModule_AddIntConstant(made, "CHUNK", CHUNK); /* of what tiles of attention take, the width is a multiple */
    if (made) PyModule_AddIntConstant(made, "VERSION", 24); /* of the functions and structs: the same in cpu.py */
    if (made) PyModule_AddIntConstant(made, "LAYER_BYTES", sizeof(Layer));
    if (made) PyModule_AddIntConstant(made, "MODEL_BYTES", sizeof(Model));
    if (made) PyModule_AddIntConstant(made, "EXPERTS_BYTES", sizeof(Experts));
    if (made) PyModule_AddIntConstant(made, "RECURRENT_BYTES", sizeof(Recurrent));
    if (made) PyModule_AddIntConstant(made, "MOST_KEYS", MOST_KEYS);
    if (made) PyModule_AddIntConstant(made, "MOST_SEEN", MOST_SEEN);
    if (made) PyModule_AddIntConstant(made, "NUMBERS", NUMBERS);
    return made;
}
