/* See automaton_memory.h. */

#include "automaton_memory.h"
#include "automaton_states.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../masks/local_state_masks.h"
#include "../pieces/piece_automaton.h"
#include "../masks/token_trie_walk.h"

#define EACH_ARRAY(DO)                                                                                        \
    DO(nodes, Node) DO(edges, int32_t) DO(classes, Class) DO(entries, int32_t) DO(pieces, const Pieces *) DO(entered, Entered)           \
    DO(frames, Frame) DO(returns, Thread) DO(frame_notes, FrameNote) DO(locals, Local) DO(branches, Branch) DO(ends, int32_t) DO(canonical_frames, int32_t) DO(threads, Thread) DO(states, State) \
    DO(subsets, Subset) DO(used, uint32_t) DO(work, Thread) DO(kept, Thread) DO(seen, Thread)                 \
    DO(opened, Opened) DO(callers, Caller) DO(moves, Seeded) DO(seeds, Thread)              \
    DO(united, Thread) DO(unions, Union) DO(sorting, Thread) DO(waiting, Thread) DO(flats, int32_t) DO(flat_at, int32_t)

#define EACH_INDEX(DO) DO(frame_index) DO(state_index) DO(seen_index) DO(subset_index) DO(move_index) DO(union_index)

/* Bytes held, without the vocabulary. */
API int64_t core_memory(Core *c) {
    int64_t held = sizeof *c + (int64_t)c->rows * 256 * sizeof(int32_t) + 3 * (c->vocabulary.reach + 2) * sizeof *c->path;
    held += c->local_bytes + c->branch_bytes;
#define ADD_ARRAY(name, type) held += (int64_t)c->name.capacity * sizeof(type);
#define ADD_INDEX(name) held += (int64_t)c->name.capacity * sizeof(int32_t);
    EACH_ARRAY(ADD_ARRAY)
    EACH_INDEX(ADD_INDEX)
    return held;
}

/* What is bounded by MAX_HELD. */
API int64_t core_held(Core *c) { return held(c); }

API void core_free(Core *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->states.size; i++) free(STATE(i).row);
    drop_locals(c);
    drop_branches(c);
#define FREE_ARRAY(name, type) free(c->name.data);
#define FREE_INDEX(name) free(c->name.slots);
    EACH_ARRAY(FREE_ARRAY)
    EACH_INDEX(FREE_INDEX)
    free(c->path);
    free(c->side);
    free(c->places);
    free(c);
}
