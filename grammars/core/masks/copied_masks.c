/* See copied_masks.h. */

#include "copied_masks.h"
#include "../automaton/automaton_states.h"
#include "../automaton/nfa_thread_sets.h"
#include "../automaton/state_closure.h"
#include "../base/growable_arrays.h"
#include "../base/work_budget.h"
#include "../pieces/piece_automaton.h"
#include "token_trie_walk.h"

/* The state after a frame is popped. */
INTERNAL int32_t popped(Core *c, int32_t frame) {
    if (NOTE(frame).caller != UNKNOWN) return NOTE(frame).caller;
    begin_closure(c);
    int code = pop(c, frame);
    int32_t found = code ? code : end_closure(c);
    if (found >= DEAD) NOTE(frame).caller = found;
    return found;
}

/* The state of the threads that are in no piece; DEAD where there are none. */
INTERNAL int32_t state_outside(Core *c, int32_t state) {
    begin_closure(c);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        const Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        if (NODE(t.node).kind != COPY && append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
    }
    return intern(c, 0);
}

/* Go on after the end of a piece at the node before `i`, with the byte of node `i`. */
static int leave_piece(Core *c, const Trie *t, int32_t caller, int32_t i, uint32_t *out) {
    const TrieNode n = t->node[i];
    c->path[n.depth - 1] = caller;
    return walk(c, t, NULL, i, n.skip, out, NULL);
}

/* Set the bits of the tokens that nodes `from` to `to` lead to from a place in a piece, which `c->places` holds for the
 * node above them. `caller` is the state after the piece. */
static int walk_piece(Core *c, const Trie *t, const Pieces *p, int32_t caller, int32_t from, int32_t to, uint32_t *out) {
    const Class after = caller < 0 ? (Class){{0}} : STATE(caller).live;
    int32_t *places = c->places;
    for (int32_t i = from; i < to;) {
        const TrieNode n = t->node[i];
        const int32_t place = places[n.depth - 1], next = piece_step(p, place, n.byte);
        if (PIECE_ENDS(p, place) && has(&after, n.byte)) {
            int code = leave_piece(c, t, caller, i, out);
            if (code) return code;
        }
        if (next == DEAD) {
            i = n.skip;
            continue;
        }
        if (spend(c, NODE_WORK)) return PAUSED;
        places[n.depth] = next;
        set_ids(t, i, i + 1, out);
        i++;
    }
    return 0;
}

/* The same for all threads of a state that are in pieces. */
INTERNAL int walk_pieces(Core *c, const Trie *t, int32_t state, int32_t from, int32_t to, uint32_t *out) {
    for (int32_t i = 0; i < STATE(state).length && from < to; i++) {
        const Thread thread = AT(c->threads, Thread, STATE(state).offset + i);
        if (NODE(thread.node).kind != COPY) continue;
        const int32_t caller = thread.frame ? popped(c, thread.frame) : DEAD;
        if (caller < DEAD) return caller;
        c->places[t->node[from].depth - 1] = thread.count;
        int code = walk_piece(c, t, PIECES(&NODE(thread.node)), caller, from, to, out);
        if (code) return code;
    }
    return 0;
}

/* The same for all threads of a state, which the walk of a trie has come to before node `from`. */
INTERNAL int walk_copied(Core *c, const Trie *t, int32_t state, int32_t from, int32_t to, uint32_t *out) {
    if (from == to) return 0;
    const int32_t rest = state_outside(c, state), above = t->node[from].depth - 1;
    if (rest < DEAD) return rest;
    if (rest != DEAD) {
        c->path[above] = rest;
        int code = walk(c, t, NULL, from, to, out, NULL);
        if (code) return code;
    }
    return walk_pieces(c, t, state, from, to, out);
}
