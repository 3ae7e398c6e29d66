/* See thread_frames.h. */

#include "thread_frames.h"
#include "nfa_thread_sets.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../base/work_budget.h"

static uint32_t union_hash(Core *c, int32_t i) {
    const Union *u = &AT(c->unions, Union, i);
    const Thread pair = {u->left, u->right, 0};
    return hash_threads(&pair, 1);
}

/* The slot of two frames in the index of unions, or the one where they belong. */
static uint32_t union_slot(Core *c, int32_t left, int32_t right) {
    const Thread pair = {left, right, 0};
    uint32_t mask = c->union_index.capacity - 1, at = hash_threads(&pair, 1) & mask;
    for (int32_t i; (i = c->union_index.slots[at]) >= 0; at = (at + 1) & mask)
        if (AT(c->unions, Union, i).left == left && AT(c->unions, Union, i).right == right) break;
    return at;
}

/* The frame of the threads of two. */
static int32_t joined(Core *c, int32_t left, int32_t right) {
    const Frame a = FRAME(left), b = FRAME(right);
    if (reserve(&c->returns, a.length + b.length, sizeof(Thread))) return NO_MEMORY;
    Thread *t = (Thread *)c->returns.data;
    memcpy(t + c->returns.size, t + a.offset, a.length * sizeof *t);
    memcpy(t + c->returns.size + a.length, t + b.offset, b.length * sizeof *t);
    c->uniting++;
    int32_t made = intern_frame(c, a.length + b.length);
    c->uniting--;
    return made;
}

static int32_t unite(Core *c, int32_t left, int32_t right) {
    if (left > right) return unite(c, right, left);
    if (left == right) return left;
    if (grow(c, &c->union_index, c->unions.size, union_hash)) return NO_MEMORY;
    uint32_t at = union_slot(c, left, right);
    if (c->union_index.slots[at] >= 0) return AT(c->unions, Union, c->union_index.slots[at]).both;
    const Union made = {left, right, joined(c, left, right)};
    if (made.both < 0) return made.both;
    if (grow(c, &c->union_index, c->unions.size, union_hash)) return NO_MEMORY;
    at = union_slot(c, left, right);
    if (append(&c->unions, &made, 1, sizeof made)) return NO_MEMORY;
    c->union_index.slots[at] = c->unions.size - 1;
    return made.both;
}

static int alike(const Thread *x, const Thread *y) {
    return x->node == y->node && x->count == y->count && x->frame && y->frame;
}

static int has_alike(const Thread *t, int32_t count) {
    for (int32_t i = 1; i < count; i++)
        if (alike(&t[i - 1], &t[i])) return 1;
    return 0;
}

/* Unite what is alike among the sorted threads from `base` on in `united`; how many are left. */
static int32_t unite_alike(Core *c, int32_t base, int32_t count) {
    int32_t kept = base;
    for (int32_t i = base; i < base + count; i++) {
        const Thread t = AT(c->united, Thread, i);
        if (kept == base || !alike(&AT(c->united, Thread, kept - 1), &t)) {
            AT(c->united, Thread, kept++) = t;
            continue;
        }
        int32_t both = unite(c, AT(c->united, Thread, kept - 1).frame, t.frame);
        if (both < 0) return both;
        AT(c->united, Thread, kept - 1).frame = both;
    }
    return drop_dominated(c, &AT(c->united, Thread, base), kept - base);
}

/* Where a set is made: after the end of `returns`, or in all of `kept`. */
static Thread *tail(Core *c, const Array *home) {
    return (Thread *)home->data + (home == &c->returns ? home->size : 0);
}

/* The sorted threads of a set are put aside while frames are made, which needs the same place. */
static int32_t merge(Core *c, Array *home, int32_t count) {
    const int32_t base = c->united.size;
    if (append(&c->united, tail(c, home), count, sizeof(Thread))) return NO_MEMORY;
    int32_t kept = unite_alike(c, base, count);
    if (kept > 0 && reserve(home, home == &c->returns ? kept : 0, sizeof(Thread))) kept = NO_MEMORY;
    if (kept > 0) memcpy(tail(c, home), &AT(c->united, Thread, base), kept * sizeof(Thread));
    c->united.size = base;
    return kept;
}

/* Sort threads, and leave out what others do as well; how many are left. */
INTERNAL int32_t make_set(Core *c, Array *home, int32_t count) {
    Thread *t = tail(c, home);
    spend(c, (int64_t)BYTE_WORK * count);
    if ((count = sort_unique(c, t, count)) < 0) return count;
    count = drop_dominated(c, t, count);
    return has_alike(t, count) && c->uniting < MAX_UNITED ? merge(c, home, count) : count;
}

static uint32_t frame_hash(Core *c, int32_t i) { return FRAME(i).hash; }

/* The one frame under all threads of a frame; the bottom where there are several. */
static int32_t frame_under(const Thread *threads, int32_t count) {
    for (int32_t i = 1; i < count; i++)
        if (threads[i].frame != threads[0].frame) return 0;
    return threads[0].frame;
}

/* The frame of a set of threads that is at the end of `returns`, and stays there if the frame is new. */
INTERNAL int32_t intern_frame(Core *c, int32_t count) {
    if ((count = make_set(c, &c->returns, count)) < 0) return count;
    Thread *threads = tail(c, &c->returns);
    if (grow(c, &c->frame_index, c->frames.size, frame_hash)) return NO_MEMORY;
    const Frame frame = {c->returns.size, count, hash_threads(threads, count)};
    uint32_t mask = c->frame_index.capacity - 1, at = frame.hash & mask;
    for (int32_t i; (i = c->frame_index.slots[at]) >= 0; at = (at + 1) & mask)
        if (FRAME(i).hash == frame.hash && FRAME(i).length == count &&
            !memcmp(&AT(c->returns, Thread, FRAME(i).offset), threads, count * sizeof *threads))
            return i;
    const FrameNote note = {frame_under(threads, count), UNKNOWN};
    if (append(&c->frame_notes, &note, 1, sizeof note)) return NO_MEMORY;
    if (append(&c->frames, &frame, 1, sizeof frame)) return NO_MEMORY;
    c->returns.size += count;
    return c->frame_index.slots[at] = c->frames.size - 1;
}
