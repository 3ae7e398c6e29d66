/* See count_shifts.h. */

#include "count_shifts.h"
#include "../automaton/thread_frames.h"
#include "../automaton/automaton_states.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

enum { CHARACTER = 4, MOST_LOOPS = 8, MOST_DEEP = 16 };
typedef struct { int32_t loop, least, most; } Span;
typedef struct { Span span[MOST_LOOPS]; int32_t size; } Spans;

static Span *span_of(Spans *s, int32_t loop) {
    for (int32_t i = 0; i < s->size; i++)
        if (s->span[i].loop == loop) return &s->span[i];
    return NULL;
}

static void note_count(Core *c, Spans *s, int32_t loop, int32_t count) {
    if (loop < 0 || NODE(loop).kind == PICK) return;
    Span *span = span_of(s, loop);
    if (!span) {
        if (s->size < MOST_LOOPS) s->span[s->size++] = (Span){loop, count, count};
        return;
    }
    if (count < span->least) span->least = count;
    if (count > span->most) span->most = count;
}

/* By how much the counts of a loop may sink; they stay above those of a loop that the character enters anew. */
static int32_t shift_of(Core *c, const Spans *s, int32_t loop) {
    Span *span = loop < 0 ? NULL : span_of((Spans *)s, loop);
    if (!span) return 0;
    int64_t least = NODE(loop).b, most = NODE(loop).c, floor = 2 * CHARACTER;
    int below = span->most + CHARACTER < least, between = span->least >= least && most - span->most > CHARACTER;
    if (between && least > floor) floor = least;
    return (below || between) && span->least > floor ? span->least - floor : 0;
}

static int32_t shifted_frame(Core *c, const Spans *s, int32_t frame) {
    if (!frame) return 0;
    int32_t under = shifted_frame(c, s, NOTE(frame).under);
    if (under < 0 || reserve(&c->returns, FRAME(frame).length, sizeof(Thread))) return NO_MEMORY;
    for (int32_t i = 0; i < FRAME(frame).length; i++) {
        const Thread t = AT(c->returns, Thread, FRAME(frame).offset + i);
        const int32_t by = shift_of(c, s, NODE(t.node).loop);
        AT(c->returns, Thread, c->returns.size + i) = (Thread){t.node, t.count - by, under};
    }
    return intern_frame(c, FRAME(frame).length);
}

/* Note the counts of a frame and of those under it; 0 where one rests on several, or they are many. */
static int note_frames(Core *c, int32_t frame, Spans *s) {
    for (int deep = 0; frame; frame = NOTE(frame).under) {
        const Frame f = FRAME(frame);
        const Thread *threads = &AT(c->returns, Thread, f.offset);
        if (++deep > MOST_DEEP) return 0;
        for (int32_t i = 0; i < f.length; i++) {
            if (threads[i].frame != NOTE(frame).under) return 0;
            note_count(c, s, NODE(threads[i].node).loop, threads[i].count);
        }
    }
    return 1;
}

static int note_counts(Core *c, int32_t state, Spans *s) {
    for (int32_t i = 0; i < STATE(state).length; i++) {
        const Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        note_count(c, s, NODE(t.node).loop, t.count);
        if (!note_frames(c, t.frame, s)) return 0;
    }
    return 1;
}

static int32_t make_shifted(Core *c, int32_t state) {
    Spans spans = {.size = 0};
    if (!note_counts(c, state, &spans)) return state;
    c->kept.size = 0;
    for (int32_t i = 0; i < STATE(state).length; i++) {
        Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        t.count -= shift_of(c, &spans, NODE(t.node).loop);
        t.frame = shifted_frame(c, &spans, t.frame);
        if (t.frame < 0 || append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
    }
    return intern(c, STATE(state).final);
}

INTERNAL int32_t shifted(Core *c, int32_t state) {
    if (STATE(state).shifted != UNKNOWN) return STATE(state).shifted;
    int32_t made = make_shifted(c, state);
    if (made >= 0) STATE(state).shifted = made;
    return made;
}
