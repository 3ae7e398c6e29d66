/* The hot core of the grammars: determinises the network lazily and walks the token trie. `twin.py` is the same in
 * plain Python and says what the numbers mean. Called through ctypes without the GIL; a core is not reentrant, its
 * caller holds a lock. Results below zero are codes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

#include "core/types.h"
#include "core/arrays.h"
#include "core/states.h"
#include "core/closure.h"
#include "core/canonical.h"
#include "core/masks.h"

/* The bytes that must come next; the number of them, or a code. */
API int32_t core_forced(Core *c, int32_t state, uint8_t *out, int32_t most) {
    int32_t found = 0;
    while (found < most && !STATE(state).final) {
        int byte = -1, choices = 0;
        for (int w = 0; w < CLASS_WORDS; w++)
            for (uint32_t bits = STATE(state).live.word[w]; bits && choices < 2; bits &= bits - 1, choices++)
                byte = w * 32 + __builtin_ctz(bits);
        if (choices != 1) break;
        state = core_step(c, state, byte);
        if (state < 0) return state;
        out[found++] = (uint8_t)byte;
    }
    return found;
}

API int32_t core_size(Core *c) { return c->states.size; }
API int32_t core_wanted(Core *c) { return c->wanted; }
API int32_t core_final(Core *c, int32_t state) { return STATE(state).final; }
API int32_t core_thread_count(Core *c, int32_t state) { return STATE(state).length; }
API void core_live(Core *c, int32_t state, uint32_t *out) { memcpy(out, &STATE(state).live, sizeof(Class)); }
API void core_frame(Core *c, int32_t frame, int32_t *out) { memcpy(out, &FRAME(frame), sizeof(Thread)); }
API void core_threads(Core *c, int32_t state, int32_t *out) {
    memcpy(out, &AT(c->threads, Thread, STATE(state).offset), STATE(state).length * sizeof(Thread));
}

/* Take over what the tables have gained; counts are of the whole tables. */
API int32_t core_extend(Core *c, const Node *nodes, int32_t n, const int32_t *edges, int32_t m, const Class *classes,
                        int32_t k, const int32_t *entries, int32_t r) {
    c->entries.size = 0;
    if (append(&c->nodes, nodes + c->nodes.size, n - c->nodes.size, sizeof *nodes)) return NO_MEMORY;
    if (append(&c->edges, edges + c->edges.size, m - c->edges.size, sizeof *edges)) return NO_MEMORY;
    if (append(&c->classes, classes + c->classes.size, k - c->classes.size, sizeof *classes)) return NO_MEMORY;
    return append(&c->entries, entries, r, sizeof *entries);
}

API void core_free(Core *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->states.size; i++) free(STATE(i).row);
    Array *arrays[] = {&c->nodes,   &c->edges,  &c->classes, &c->entries, &c->frames,   &c->canonical_frames,
                       &c->threads, &c->states, &c->work,    &c->kept,    &c->seen};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]->data);
    free(c->frame_index.slots);
    free(c->state_index.slots);
    free(c->seen_index.slots);
    free(c->path);
    free(c);
}

API Core *core_new(const Vocabulary *vocabulary, int32_t limit) {
    Core *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->vocabulary = *vocabulary;
    c->limit = limit;
    c->path = malloc((vocabulary->reach + 1) * sizeof *c->path);
    if (!c->path || push_frame(c, -1, 0, 0) < 0) {
        core_free(c);
        return NULL;
    }
    return c;
}

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_core", .m_doc = "The grammars' core, called by ctypes.", .m_size = -1};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
