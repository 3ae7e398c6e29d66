/* See local_state_masks.h. */

#include "local_state_masks.h"
#include "../automaton/thread_frames.h"
#include "../automaton/automaton_states.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "character_family_masks.h"
#include "token_trie_walk.h"

enum { OPEN = -6, MOST_CHARS = 63, MOST_LOCAL_BYTES = 8 << 20, MOST_RAISED = 64 };

/* The deepest frame under all threads of a state, as long as each frame rests on one only. A frame has a higher number
 * than those under it. */
INTERNAL int32_t common_frame(Core *c, int32_t state) {
    const Thread *threads = &AT(c->threads, Thread, STATE(state).offset);
    int32_t found = STATE(state).final ? 0 : threads[0].frame;
    for (int32_t i = 1; i < STATE(state).length && found; i++)
        for (int32_t other = threads[i].frame; other != found;)
            if (other > found) other = NOTE(other).under;
            else found = NOTE(found).under;
    return found;
}

/* How many frames are between two. */
static int32_t rise(Core *c, int32_t frame, int32_t bottom) {
    int32_t found = 0;
    for (; frame != bottom; frame = NOTE(frame).under) found++;
    return found;
}

static int32_t raised(Core *c, int32_t frame, int32_t bottom) {
    if (frame == bottom) return 0;
    int32_t under = raised(c, NOTE(frame).under, bottom);
    if (under < 0 || reserve(&c->returns, FRAME(frame).length, sizeof(Thread))) return NO_MEMORY;
    for (int32_t i = 0; i < FRAME(frame).length; i++) {
        const Thread t = AT(c->returns, Thread, FRAME(frame).offset + i);
        AT(c->returns, Thread, c->returns.size + i) = (Thread){t.node, t.count, under};
    }
    return intern_frame(c, FRAME(frame).length);
}

/* The state with `bottom` as its bottom frame; as it is, and over the true bottom, where that is too far down. */
INTERNAL int32_t relative(Core *c, int32_t state, int32_t *bottom) {
    if (!*bottom) return state;
    c->kept.size = 0;
    for (int32_t i = 0; i < STATE(state).length; i++) {
        Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        if (rise(c, t.frame, *bottom) > MOST_RAISED) return *bottom = 0, state;
        t.frame = raised(c, t.frame, *bottom);
        if (t.frame < 0 || append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
    }
    return intern(c, 0);
}

/* The states after 0, 1, 2 ... characters of a family; UNKNOWN where they depend on the characters. */
static int32_t follow_family(Core *c, int32_t state, int32_t number, int32_t *after) {
    after[0] = state;
    for (int32_t k = 1; k <= family(c, number)->most; k++) {
        int settled = after[k - 1] < 0 || (k > 1 && after[k - 1] == after[k - 2]);
        after[k] = settled ? after[k - 1] : onward(c, after[k - 1], number);
        if (after[k] < DEAD) return after[k];
    }
    return 0;
}

INTERNAL void drop_locals(Core *c) {
    for (int32_t i = 0; i < c->locals.size; i++) {
        free(LOCAL(i).row);
        free(LOCAL(i).ends);
    }
    c->locals.size = 0;
    c->local_bytes = 0;
}

static int keep_local(Core *c, int32_t state, Local *l) {
    if (c->local_bytes > MOST_LOCAL_BYTES) {
        drop_locals(c);
        for (int32_t i = 0; i < c->states.size; i++) STATE(i).local = UNKNOWN;
    }
    if (append(&c->locals, l, 1, sizeof *l)) return NO_MEMORY;
    c->local_bytes += c->vocabulary.words * sizeof *l->row + l->count * sizeof *l->ends;
    return STATE(state).local = c->locals.size - 1;
}

static int fill_local(Core *c, const int32_t *after, Local *l) {
    const Family *f = family(c, l->family);
    size_t words = c->vocabulary.words;
    int32_t capacity = f->longest;
    while (capacity && after[capacity] == DEAD) capacity--;
    memcpy(l->row, f->rows + capacity * words, words * sizeof *l->row);
    c->ends.size = 0;
    int code = walk(c, &f->exits, after, 0, f->exits.size, l->row, l->root ? NULL : &c->ends);
    l->count = c->ends.size;
    l->ends = code ? NULL : malloc(l->count * sizeof(int32_t) + 1);
    if (!l->ends) return code ? code : NO_MEMORY;
    if (l->count) memcpy(l->ends, c->ends.data, l->count * sizeof(int32_t));
    return 0;
}

/* Whether the text may return after characters of the family alone. */
static int is_open(Core *c, int32_t number, const int32_t *after) {
    for (int32_t k = 1; k <= family(c, number)->most; k++)
        if (after[k] >= 0 && STATE(after[k]).final) return 1;
    return 0;
}

static int32_t make_local(Core *c, int32_t state, int32_t number, const int32_t *after, int open, int root) {
    Local l = {malloc(c->vocabulary.words * sizeof(uint32_t)), NULL, 0, number, open, root};
    int32_t made = l.row ? fill_local(c, after, &l) : NO_MEMORY;
    if (!made) made = keep_local(c, state, &l);
    if (made < 0) {
        free(l.row);
        free(l.ends);
    }
    return made;
}

/* Whether a state takes a family larger than this one and stays as it is: a row to begin with. */
static int absorbs_more(Core *c, int32_t state, int32_t number) {
    for (int32_t i = 0; i < number; i++)
        if (may_begin(c, state, family(c, i)) && onward(c, state, i) == state) return 1;
    return 0;
}

/* The local mask of a state that takes all of a family alike: its number, DEAD where there is no such family, or
 * where the next state is the better one to begin with, or where it may return to a caller before it leaves the
 * family. */
INTERNAL int32_t local(Core *c, int32_t state, int32_t bottom) {
    int32_t after[MOST_CHARS + 1], known = STATE(state).local;
    if (known >= 0 && !(LOCAL(known).root && bottom)) return LOCAL(known).open && bottom ? DEAD : known;
    if (known == DEAD || (known == OPEN && bottom)) return DEAD;
    int32_t count = core_takes_plain(c, state) ? PLAIN + 1 : c->vocabulary.family_count;
    for (int32_t i = 0; i < count; i++) {
        if (!may_begin(c, state, family(c, i))) continue;
        int32_t code = follow_family(c, state, i, after);
        if (code && code != UNKNOWN) return code;
        if (code) continue;
        if (after[1] != state && after[1] >= 0 && absorbs_more(c, after[1], i)) break;
        int open = is_open(c, i, after);
        if (open && bottom) return STATE(state).local = OPEN, DEAD;
        return make_local(c, state, i, after, open, !bottom);
    }
    return STATE(state).local = DEAD;
}
