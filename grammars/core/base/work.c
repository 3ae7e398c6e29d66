/* How much a core may do before it stops with PAUSED; what it found by then stays found, so that it goes on from there.
 *
 * A step of work takes some nanoseconds: a node of a trie that is walked; a thread of a closure is several. A hasty
 * core stops at once, in the middle of a closure; any other one ends the closure that it is in, so that it gets on. */

enum { NODE_WORK = 1, BYTE_WORK = 4, VISIT_WORK = 8 };
#define UNLIMITED INT64_MAX

static int spend(Core *c, int64_t work) {
    c->spare -= work;
    return c->spare < 0 && c->hasty ? PAUSED : 0;
}

API void core_allow(Core *c, int64_t work, int32_t hasty) {
    c->spare = work;
    c->hasty = hasty;
}

API int64_t core_spare(Core *c) { return c->spare; }
