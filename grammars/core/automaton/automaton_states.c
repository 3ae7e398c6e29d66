/* See automaton_states.h. */

#include "automaton_states.h"
#include "thread_frames.h"
#include "nfa_thread_sets.h"
#include "../pieces/piece_automaton.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

static uint32_t state_hash(Core *c, int32_t i) { return STATE(i).hash; }

/* The one byte of a set, or MANY where it has not exactly one. */
static int only_byte(const Class *set) {
    int found = MANY;
    for (int w = 0; w < CLASS_WORDS; w++) {
        uint32_t bits = set->word[w];
        if (!bits) continue;
        if (found != MANY || bits & (bits - 1)) return MANY;
        found = w * 32 + __builtin_ctz(bits);
    }
    return found;
}

static int32_t new_state(Core *c, const Thread *threads, int32_t count, int final, uint32_t hash) {
    State s = {.offset = c->threads.size, .length = count, .hash = hash, .final = final};
    s.canonical = s.next = s.shifted = s.family = s.local = s.branch = UNKNOWN;
    for (int32_t i = 0; i < count; i++) {
        const Node *n = &NODE(threads[i].node);
        if (n->kind == COPY) {
            add_piece_bytes(PIECES(n), threads[i].count, &s.live);
            s.copied = 1;
            continue;
        }
        const Class *set = &AT(c->classes, Class, n->a);
        for (int w = 0; w < CLASS_WORDS; w++) s.live.word[w] |= set->word[w];
    }
    s.only = only_byte(&s.live);
    if (append(&c->threads, threads, count, sizeof *threads)) return NO_MEMORY;
    return append(&c->states, &s, 1, sizeof s) ? NO_MEMORY : c->states.size - 1;
}

INTERNAL int64_t held(Core *c) { return (int64_t)c->threads.size + c->returns.size + c->used.size + c->unions.size; }

/* The state of the threads in `kept`, which are sorted here. */
INTERNAL int32_t intern(Core *c, int final) {
    if (!c->kept.size && !final) return DEAD;
    const int32_t count = make_set(c, &c->kept, c->kept.size);
    if (count < 0) return count;
    const Thread *threads = c->kept.data;
    if (grow(c, &c->state_index, c->states.size, state_hash)) return NO_MEMORY;
    uint32_t hash = hash_threads(threads, count) * 2 + final, mask = c->state_index.capacity - 1, at = hash & mask;
    for (int32_t i; (i = c->state_index.slots[at]) >= 0; at = (at + 1) & mask) {
        const State *s = &STATE(i);
        if (s->hash == hash && s->length == count && s->final == final &&
            (!count || !memcmp(&AT(c->threads, Thread, s->offset), threads, count * sizeof *threads)))
            return i;
    }
    if (c->states.size >= c->limit || held(c) >= MAX_HELD) return CROWDED;
    int32_t made = new_state(c, threads, count, final, hash);
    return made < 0 ? made : (c->state_index.slots[at] = made);
}
