/* See state_closure.h. */

#include "state_closure.h"
#include "flattened_splits.h"
#include "thread_frames.h"
#include "automaton_states.h"
#include "unordered_list_subsets.h"
#include "nfa_thread_sets.h"
#include "../pieces/piece_automaton.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../base/work_budget.h"

static uint32_t seen_hash(Core *c, int32_t i) { return hash_threads(&AT(c->seen, Thread, i), 1); }

/* The slot of a thread in the index of those seen, or the one where it belongs. */
static uint32_t seen_slot(Core *c, const Thread *t) {
    uint32_t mask = c->seen_index.capacity - 1, at = hash_threads(t, 1) & mask;
    for (int32_t i; (i = c->seen_index.slots[at]) >= 0 && !same(&AT(c->seen, Thread, i), t);) at = (at + 1) & mask;
    return at;
}

/* Remember a silent thread of the running closure; 1 if it was there. A few are looked through, more are hashed. */
static int remember(Core *c, const Thread *t) {
    if (c->seen.size < FEW) {
        for (int32_t i = 0; i < c->seen.size; i++)
            if (same(&AT(c->seen, Thread, i), t)) return 1;
    } else {
        if (grow(c, &c->seen_index, c->seen.size, seen_hash)) return NO_MEMORY;
        for (; c->hashed < c->seen.size; c->hashed++)
            c->seen_index.slots[seen_slot(c, &AT(c->seen, Thread, c->hashed))] = c->hashed;
        if (c->seen_index.slots[seen_slot(c, t)] >= 0) return 1;
    }
    return append(&c->seen, t, 1, sizeof *t);
}

/* Keep a thread within a piece where the piece may go on, and go on after it where it may end. */
static int visit_copied(Core *c, const Thread *t) {
    const Pieces *p = PIECES(&NODE(t->node));
    if (PIECE_STATE(p, t->count).count && append(&c->kept, t, 1, sizeof *t)) return NO_MEMORY;
    return PIECE_ENDS(p, t->count) ? pop(c, t->frame) : 0;
}

/* Keep a thread at a BYTE node, queue any other unless it was there. Splits over frames wait until all else has been
 * done, so that those that differ in their frames alone are one. */
static int visit(Core *c, int32_t node, int32_t count, int32_t frame) {
    Thread t = {node, count, frame};
    if (spend(c, VISIT_WORK)) return PAUSED;
    if (++c->visits > MAX_VISITS || c->seen.size + c->kept.size >= MAX_THREADS) return FULL;
    if (NODE(node).kind == BYTE) return append(&c->kept, &t, 1, sizeof t);
    if (NODE(node).kind == COPY) return visit_copied(c, &t);
    if (NODE(node).kind == SPLIT && frame > 0) return append(&c->waiting, &t, 1, sizeof t);
    int known = remember(c, &t);
    if (known) return known < 0 ? known : 0;
    return append(&c->work, &t, 1, sizeof t);
}

static int open_frame(Core *c, int32_t target) {
    const Opened fresh = {-1, -1, UNKNOWN, 0};
    AT(c->entered, Entered, target) = (Entered){c->closure, c->opened.size};
    if (append(&c->opened, &fresh, 1, sizeof fresh)) return NO_MEMORY;
    return visit(c, target, 0, -c->opened.size);
}

static int add_caller(Core *c, Opened *opened, const Thread *t) {
    const Caller caller = {*t, -1};
    if (append(&c->callers, &caller, 1, sizeof caller)) return NO_MEMORY;
    int32_t *end = opened->last < 0 ? &opened->first : &AT(c->callers, Caller, opened->last).next;
    *end = opened->last = c->callers.size - 1;
    return opened->popped ? visit(c, t->node, t->count, t->frame) : 0;
}

/* Enter what starts at a node, under the one open frame of all its callers in this closure. */
static int push(Core *c, int32_t target, int32_t after, const Thread *t) {
    const Thread caller = {after, t->count, t->frame};
    int code = AT(c->entered, Entered, target).closure == c->closure ? 0 : open_frame(c, target);
    if (code) return code;
    return add_caller(c, &AT(c->opened, Opened, AT(c->entered, Entered, target).opened), &caller);
}

static int pop_open(Core *c, Opened *opened) {
    int code = 0;
    opened->popped = 1;
    for (int32_t i = opened->first; i >= 0 && !code; i = AT(c->callers, Caller, i).next) {
        const Thread t = AT(c->callers, Caller, i).thread;
        code = visit(c, t.node, t.count, t.frame);
    }
    return code;
}

/* Popping the bottom is an end. */
INTERNAL int pop(Core *c, int32_t frame) {
    if (!frame) return c->final = 1, 0;
    if (frame < 0) return pop_open(c, &OPENED(frame));
    int code = 0;
    for (int32_t i = 0; i < FRAME(frame).length && !code; i++) {
        const Thread t = AT(c->returns, Thread, FRAME(frame).offset + i);
        code = visit(c, t.node, t.count, t.frame);
    }
    return code;
}

static int visit_rule(Core *c, const Node *n, const Thread *t) {
    int32_t entry = AT(c->entries, int32_t, n->a);
    if (entry < 0) {
        c->wanted = n->a;
        return NEED;
    }
    if (NODE(n->b).kind == RETURN && AT(c->entered, Entered, entry).closure != c->closure)
        return visit(c, entry, 0, t->frame); /* a last call needs no frame, unless the rule has one here already */
    return push(c, entry, n->b, t);
}

static int visit_parts(Core *c, const Node *pick, const Thread *t) {
    const PartTable *table = part_table(c, pick);
    const Subset s = SUBSET(t->count);
    int spare = has_spare(c, table, &s), code = 0;
    for (int32_t part = 0; part <= pick->b && !code; part++)
        if (may_pick(c, pick, &s, part, spare))
            code = visit(c, part < pick->b ? table->parts[part] : table->extra, t->count, t->frame);
    return code;
}

/* After a member of a list in any order: its end if it may close, a separator if another member may come. */
static int visit_seen(Core *c, const Node *seen, const Thread *t) {
    const Node *pick = &NODE(seen->a);
    Subset s;
    if (add_member(c, seen->a, t->count, seen->b, &s)) return NO_MEMORY;
    int code = may_close(c, part_table(c, pick), &s) ? pop(c, t->frame) : 0;
    if (code || !may_go_on(c, pick, &s)) return code;
    int32_t subset = intern_subset(c, &s);
    return subset < 0 ? subset : visit(c, pick->c, subset, t->frame);
}

static int visit_loop(Core *c, const Node *n, const Thread *t) {
    int code = n->c < 0 || t->count < n->c ? visit(c, n->a, t->count, t->frame) : 0;
    return !code && (t->count >= n->b || t->count == BETWEEN) ? pop(c, t->frame) : code;
}

/* Keep threads at some BYTE nodes. */
static int keep_bytes(Core *c, const int32_t *nodes, int32_t count, const Thread *t) {
    if (spend(c, (int64_t)VISIT_WORK * count)) return PAUSED;
    c->visits += count;
    if (c->visits > MAX_VISITS || c->seen.size + c->kept.size + count > MAX_THREADS) return FULL;
    if (reserve(&c->kept, count, sizeof *t)) return NO_MEMORY;
    Thread *kept = &AT(c->kept, Thread, c->kept.size);
    for (int32_t i = 0; i < count; i++) kept[i] = (Thread){nodes[i], t->count, t->frame};
    c->kept.size += count;
    return 0;
}

static int visit_flat(Core *c, int32_t flat, const Thread *t) {
    const int32_t *row = &AT(c->flats, int32_t, flat), count = row[0], bytes = row[1];
    int code = keep_bytes(c, row + 2, bytes, t);
    for (int32_t i = bytes; i < count && !code; i++) code = visit(c, row[2 + i], t->count, t->frame);
    return code;
}

static int visit_split(Core *c, const Node *n, const Thread *t) {
    const int32_t flat = flat_of(c, t->node);
    if (flat >= 0) return visit_flat(c, flat, t);
    int code = flat == NOT_FLAT ? 0 : flat;
    for (int32_t i = 0; i < n->b && !code; i++) code = visit(c, AT(c->edges, int32_t, n->a + i), t->count, t->frame);
    return code;
}

/* All moves of a thread that read nothing. */
static int silent(Core *c, const Thread *t) {
    const Node *n = &NODE(t->node);
    switch (n->kind) {
    case SPLIT: return visit_split(c, n, t);
    case CALL: return visit_rule(c, n, t);
    case ENTER: return push(c, n->a, n->b, t);
    case NEXT: {
        const Node *loop = &NODE(n->a);
        int32_t count = t->count < 0 ? t->count : loop->c < 0 && t->count >= loop->b ? loop->b : t->count + 1;
        return visit(c, n->a, count, t->frame);
    }
    case LOOP: return visit_loop(c, n, t);
    case PICK: return visit_parts(c, n, t);
    case SEEN: return visit_seen(c, n, t);
    default: return pop(c, t->frame);
    }
}

INTERNAL void begin_closure(Core *c) {
    uint32_t mask = c->seen_index.capacity - 1;
    for (int32_t i = 0; c->hashed && i < c->seen.size; i++)
        for (uint32_t at = seen_hash(c, i) & mask; c->seen_index.slots[at] >= 0; at = (at + 1) & mask)
            c->seen_index.slots[at] = -1;
    c->seen.size = c->work.size = c->waiting.size = c->kept.size = c->opened.size = c->callers.size = 0;
    c->visits = c->hashed = c->final = 0;
    c->closure++;
}

/* The number of a frame, UNKNOWN while it is open. */
static int32_t closed_frame(Core *c, int32_t frame) { return frame < 0 ? OPENED(frame).closed : frame; }

/* Put a thread after `count` others of a frame that is being made, and in the place of one that only returns what it
 * returns to; but none takes the place of the bottom. How many there are. */
static int32_t add_return(Core *c, int32_t count, Thread t) {
    const int32_t inner = t.frame && NODE(t.node).kind == RETURN ? FRAME(t.frame).length : 0;
    if (reserve(&c->returns, count + inner + 1, sizeof t)) return NO_MEMORY;
    Thread *end = (Thread *)c->returns.data + c->returns.size + count;
    if (!inner) return *end = t, count + 1;
    memcpy(end, &AT(c->returns, Thread, FRAME(t.frame).offset), inner * sizeof t);
    return count + inner;
}

/* Intern an open frame once all that it rests on are; 1 if that could be done. */
static int close_frame(Core *c, Opened *opened) {
    int32_t count = 0;
    for (int32_t i = opened->first; i >= 0; i = AT(c->callers, Caller, i).next) {
        Thread t = AT(c->callers, Caller, i).thread;
        if ((t.frame = closed_frame(c, t.frame)) == UNKNOWN) return 0;
        if ((count = add_return(c, count, t)) < 0) return count;
    }
    opened->closed = intern_frame(c, count);
    return opened->closed < 0 ? opened->closed : 1;
}

/* Intern the open frames, each after those that it rests on; a circle of them is left recursion. */
static int close_frames(Core *c) {
    for (int32_t left = c->opened.size, before; left;) {
        before = left;
        for (int32_t i = 0; i < c->opened.size; i++) {
            Opened *opened = &AT(c->opened, Opened, i);
            int code = opened->closed == UNKNOWN ? close_frame(c, opened) : 0;
            if (code < 0) return code;
            left -= code;
        }
        if (left == before) return FULL;
    }
    return 0;
}

/* Queue the splits that waited. */
static int queue_waiting(Core *c) {
    const int32_t count = make_set(c, &c->waiting, c->waiting.size);
    int code = count < 0 ? count : 0;
    for (int32_t i = 0; i < count && !code; i++) {
        const Thread t = AT(c->waiting, Thread, i);
        const int known = remember(c, &t);
        code = known ? known < 0 ? known : 0 : append(&c->work, &t, 1, sizeof t);
    }
    c->waiting.size = 0;
    return code;
}

/* The state that the queued threads reach without reading a byte. */
INTERNAL int32_t end_closure(Core *c) {
    int code = 0;
    while ((c->work.size || c->waiting.size) && !code) {
        if (!c->work.size && (code = queue_waiting(c))) break;
        if (!c->work.size) continue;
        const Thread t = AT(c->work, Thread, --c->work.size);
        code = silent(c, &t);
    }
    if (code || (code = close_frames(c))) return code;
    for (int32_t i = 0; i < c->kept.size; i++)
        AT(c->kept, Thread, i).frame = closed_frame(c, AT(c->kept, Thread, i).frame);
    return intern(c, c->final);
}

static int make_row(Core *c, int32_t state) {
    int32_t *row = malloc(256 * sizeof *row);
    if (!row) return NO_MEMORY;
    const Class live = STATE(state).live;
    memset(row, 0xFF, 256 * sizeof *row); /* DEAD */
    for (int w = 0; w < CLASS_WORDS; w++)
        for (uint32_t bits = live.word[w]; bits; bits &= bits - 1) row[w * 32 + __builtin_ctz(bits)] = UNKNOWN;
    STATE(state).row = row;
    c->rows++;
    return 0;
}

static uint32_t move_hash(Core *c, int32_t i) { return AT(c->moves, Seeded, i).hash; }

/* Many states have the same threads after a byte: their closures are remembered, as long as they are not too many. */
static void forget_moves(Core *c) {
    if (c->seeds.size < MAX_SEEDS) return;
    c->moves.size = c->seeds.size = 0;
    memset(c->move_index.slots, 0xFF, c->move_index.capacity * sizeof *c->move_index.slots);
}

static int32_t close_seeds(Core *c, const Thread *seeds, int32_t count) {
    begin_closure(c);
    for (int32_t i = 0; i < count; i++) {
        int code = visit(c, seeds[i].node, seeds[i].count, seeds[i].frame);
        if (code) return code;
    }
    return end_closure(c);
}

/* The state of the threads that are at the end of `seeds`, and stay there if they are new. */
static int32_t closure_of(Core *c, int32_t count) {
    const Thread *seeds = (Thread *)c->seeds.data + c->seeds.size;
    if (grow(c, &c->move_index, c->moves.size, move_hash)) return NO_MEMORY;
    const uint32_t hash = hash_threads(seeds, count), mask = c->move_index.capacity - 1;
    uint32_t at = hash & mask;
    for (int32_t i; (i = c->move_index.slots[at]) >= 0; at = (at + 1) & mask) {
        const Seeded *m = &AT(c->moves, Seeded, i);
        if (m->hash == hash && m->length == count &&
            !memcmp(&AT(c->seeds, Thread, m->offset), seeds, count * sizeof *seeds))
            return m->target;
    }
    const Seeded made = {hash, c->seeds.size, count, close_seeds(c, seeds, count)};
    if (made.target < DEAD) return made.target;
    if (append(&c->moves, &made, 1, sizeof made)) return NO_MEMORY;
    c->seeds.size += count;
    c->move_index.slots[at] = c->moves.size - 1;
    return made.target;
}

/* Add where a byte leads within a piece to the seeds, and drop from `alike` what leads elsewhere; the number of
 * seeds. */
static int32_t seed_piece(Core *c, const Thread *t, int byte, Class *alike, Thread *seeds, int32_t count) {
    const Pieces *p = PIECES(&NODE(t->node));
    const int32_t target = piece_step(p, t->count, byte);
    Class others = {{0}};
    if (target == DEAD) add_piece_bytes(p, t->count, &others);
    else {
        memset(&others, 0xFF, sizeof others);
        others.word[byte >> 5] &= ~(1u << (byte & 31));
        seeds[count++] = (Thread){t->node, target, t->frame};
    }
    for (int w = 0; w < CLASS_WORDS; w++) alike->word[w] &= ~others.word[w];
    return count;
}

/* Where a byte leads, and all the bytes that the state's threads cannot tell from it. */
static int32_t moved(Core *c, int32_t state, int byte, Class *alike) {
    const State *s = &STATE(state);
    if (c->spare < 0) return PAUSED;
    spend(c, (int64_t)BYTE_WORK * s->length);
    forget_moves(c);
    if (reserve(&c->seeds, s->length, sizeof(Thread))) return NO_MEMORY;
    Thread *seeds = (Thread *)c->seeds.data + c->seeds.size;
    int32_t count = 0;
    memset(alike, 0xFF, sizeof *alike);
    for (int32_t i = 0; i < s->length; i++) {
        const Thread t = AT(c->threads, Thread, s->offset + i);
        const Node *n = &NODE(t.node);
        if (n->kind == COPY) {
            count = seed_piece(c, &t, byte, alike, seeds, count);
            continue;
        }
        const Class *set = &AT(c->classes, Class, n->a);
        uint32_t flip = has(set, byte) ? 0 : ~0u;
        for (int w = 0; w < CLASS_WORDS; w++) alike->word[w] &= set->word[w] ^ flip;
        if (!flip) seeds[count++] = (Thread){n->b, t.count, t.frame};
    }
    return count ? closure_of(c, count) : DEAD;
}

static int32_t fill(Core *c, int32_t state, int byte) {
    Class alike;
    int32_t target = moved(c, state, byte, &alike), *row = STATE(state).row;
    for (int w = 0; target >= DEAD && w < CLASS_WORDS; w++)
        for (uint32_t bits = alike.word[w]; bits; bits &= bits - 1) row[w * 32 + __builtin_ctz(bits)] = target;
    return target;
}

/* A state with one live byte needs no row. */
static int32_t only_step(Core *c, int32_t state, int byte) {
    Class alike;
    if (byte != STATE(state).only) return DEAD;
    if (STATE(state).next != UNKNOWN) return STATE(state).next;
    int32_t target = moved(c, state, byte, &alike);
    if (target >= DEAD) STATE(state).next = target;
    return target;
}

API int32_t core_step(Core *c, int32_t state, int32_t byte) {
    if (STATE(state).only != MANY) return only_step(c, state, byte);
    if (!STATE(state).row && make_row(c, state)) return NO_MEMORY;
    int32_t target = STATE(state).row[byte];
    return target != UNKNOWN ? target : fill(c, state, byte);
}

API int32_t core_start(Core *c) {
    if (AT(c->entries, int32_t, 0) < 0) {
        c->wanted = 0;
        return NEED;
    }
    begin_closure(c);
    int code = visit(c, AT(c->entries, int32_t, 0), 0, 0);
    return code ? code : end_closure(c);
}

API int32_t core_advance(Core *c, int32_t state, const uint8_t *data, int32_t length) {
    for (int32_t i = 0; i < length && state >= 0; i++) state = core_step(c, state, data[i]);
    return state;
}
