/* See canonical_states.h. */

#include "canonical_states.h"
#include "../automaton/state_closure.h"
#include "../automaton/thread_frames.h"
#include "../automaton/automaton_states.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

static int32_t canonical_count(Core *c, int32_t loop, int32_t count) {
    if (loop < 0 || count < 0 || NODE(loop).kind == PICK) return count; /* a list's count is a subset */
    int64_t least = NODE(loop).b, most = NODE(loop).c, reach = c->vocabulary.reach;
    if (most < 0 && count >= least) return count;
    if (count < least) return least - count > reach ? BELOW : count;
    return most - count > reach ? BETWEEN : count;
}

/* Frames rest on frames of lower numbers, so they are worked out in order. */
static int32_t next_canonical_frame(Core *c) {
    const Frame frame = FRAME(c->canonical_frames.size);
    if (reserve(&c->returns, frame.length, sizeof(Thread))) return NO_MEMORY;
    for (int32_t i = 0; i < frame.length; i++) {
        Thread t = AT(c->returns, Thread, frame.offset + i);
        t.count = canonical_count(c, NODE(t.node).loop, t.count);
        t.frame = AT(c->canonical_frames, int32_t, t.frame);
        AT(c->returns, Thread, c->returns.size + i) = t;
    }
    int32_t made = intern_frame(c, frame.length);
    return made < 0 ? made : append(&c->canonical_frames, &made, 1, sizeof made);
}

static int32_t canonical_frame(Core *c, int32_t frame) {
    while (c->canonical_frames.size <= frame)
        if (next_canonical_frame(c)) return NO_MEMORY;
    return AT(c->canonical_frames, int32_t, frame);
}

API int32_t core_canonical(Core *c, int32_t state) {
    if (STATE(state).canonical != UNKNOWN) return STATE(state).canonical;
    begin_closure(c);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        t.count = canonical_count(c, NODE(t.node).loop, t.count);
        t.frame = canonical_frame(c, t.frame);
        if (t.frame < 0 || append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
    }
    int32_t made = intern(c, STATE(state).final);
    if (made >= 0) STATE(state).canonical = made;
    return made;
}

/* The state of what two of them allow. */
API int32_t core_either(Core *c, int32_t left, int32_t right) {
    const int32_t both[2] = {left, right};
    begin_closure(c);
    for (int k = 0; k < 2; k++)
        for (int32_t i = 0; i < STATE(both[k]).length; i++) {
            const Thread t = AT(c->threads, Thread, STATE(both[k]).offset + i);
            if (append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
        }
    return intern(c, STATE(left).final || STATE(right).final);
}
