/* See automaton_core.h. */

#include "automaton_core.h"
#include "state_closure.h"
#include "thread_frames.h"
#include "automaton_memory.h"
#include "../pieces/piece_automaton.h"
#include "unordered_list_subsets.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../base/work_budget.h"

#define PY_SSIZE_T_CLEAN

/* The bytes that must come next; the number of them, or a code. */
API int32_t core_forced(Core *c, int32_t state, uint8_t *out, int32_t most) {
    int32_t found = 0;
    while (found < most && !STATE(state).final && STATE(state).only != MANY) {
        int byte = STATE(state).only;
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
API void core_subset(Core *c, int32_t subset, int32_t *out) { memcpy(out, &SUBSET(subset), sizeof(Subset)); }

API void core_used(Core *c, int32_t subset, uint32_t *out) {
    const Subset *s = &SUBSET(subset);
    if (s->words) memcpy(out, &AT(c->used, uint32_t, s->offset), s->words * sizeof *out);
}

API int32_t core_frame_length(Core *c, int32_t frame) { return FRAME(frame).length; }

API void core_frame(Core *c, int32_t frame, int32_t *out) {
    memcpy(out, &AT(c->returns, Thread, FRAME(frame).offset), FRAME(frame).length * sizeof(Thread));
}

API void core_threads(Core *c, int32_t state, int32_t *out) {
    const State *s = &STATE(state);
    if (s->length) memcpy(out, &AT(c->threads, Thread, s->offset), s->length * sizeof(Thread));
}

/* Frame 0, the bottom, and the empty subset. */
static int first_registers(Core *c) {
    const Thread bottom = {-1, 0, 0};
    const Subset empty = {-1, 0, 0, 0};
    const int32_t itself = 0;
    if (reserve(&c->returns, 1, sizeof bottom)) return NO_MEMORY;
    AT(c->returns, Thread, 0) = bottom;
    return intern_frame(c, 1) | intern_subset(c, &empty) | append(&c->canonical_frames, &itself, 1, sizeof itself);
}

/* Take over what the tables have gained; counts are of the whole tables. */
API int32_t core_extend(Core *c, const Node *nodes, int32_t n, const int32_t *edges, int32_t m, const Class *classes,
                        int32_t k, const int32_t *entries, int32_t r) {
    c->entries.size = 0;
    if (append(&c->nodes, nodes + c->nodes.size, n - c->nodes.size, sizeof *nodes)) return NO_MEMORY;
    if (append(&c->edges, edges + c->edges.size, m - c->edges.size, sizeof *edges)) return NO_MEMORY;
    if (append(&c->classes, classes + c->classes.size, k - c->classes.size, sizeof *classes)) return NO_MEMORY;
    if (append(&c->entries, entries, r, sizeof *entries)) return NO_MEMORY;
    int32_t more = n - c->entered.size;
    if (reserve(&c->entered, more, sizeof(Entered))) return NO_MEMORY;
    if (more) memset(&AT(c->entered, Entered, c->entered.size), 0, more * sizeof(Entered));
    c->entered.size = n;
    if (reserve(&c->flat_at, more, sizeof(int32_t))) return NO_MEMORY;
    if (more) memset(&AT(c->flat_at, int32_t, c->flat_at.size), 0, more * sizeof(int32_t));
    c->flat_at.size = n;
    return 0;
}

/* Take over the automaton of one more text; the caller keeps it alive as long as the core. */
INTERNAL int add_pieces(Core *c, const Pieces *pieces) {
    return append(&c->pieces, &pieces, 1, sizeof pieces);
}

API Core *core_new(const Vocabulary *vocabulary, int32_t limit) {
    Core *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->vocabulary = *vocabulary;
    c->limit = limit;
    c->spare = UNLIMITED;
    c->path = malloc((vocabulary->reach + 2) * sizeof *c->path);
    c->side = malloc((vocabulary->reach + 2) * sizeof *c->side);
    c->places = malloc((vocabulary->reach + 2) * sizeof *c->places);
    if (!c->path || !c->side || !c->places || first_registers(c)) {
        core_free(c);
        return NULL;
    }
    return c;
}
