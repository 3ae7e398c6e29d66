/* See token_trie_walk.h. */

#include "token_trie_walk.h"
#include "../automaton/state_closure.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../base/work_budget.h"
#include "copied_masks.h"

INTERNAL void set_ids(const Trie *t, int32_t from, int32_t to, uint32_t *out) {
    for (int32_t k = t->node[from].first; k < t->node[to].first; k++) out[t->ids[k] >> 5] |= 1u << (t->ids[k] & 31);
}

static void clear_ids(const Trie *t, int32_t from, int32_t to, uint32_t *out) {
    for (int32_t k = t->node[from].first; k < t->node[to].first; k++) out[t->ids[k] >> 5] &= ~(1u << (t->ids[k] & 31));
}

INTERNAL int32_t step_known(Core *c, int32_t state, int byte) {
    const int32_t *row = STATE(state).row;
    int32_t target = row ? row[byte] : UNKNOWN;
    return target == UNKNOWN ? core_step(c, state, byte) : target;
}

enum { LARGE = 4000, DENSE = 20, MOST_BRANCH_BYTES = 8 << 20 };

/* Whether so many bytes may come that a walk would be long. */
INTERNAL int is_dense(Core *c, int32_t state) {
    int count = 0;
    for (int w = 0; w < CLASS_WORDS; w++) count += __builtin_popcount(STATE(state).live.word[w]);
    return count >= DENSE;
}

INTERNAL void drop_branches(Core *c) {
    for (int32_t i = 0; i < c->branches.size; i++) {
        free(AT(c->branches, Branch, i).row);
        free(AT(c->branches, Branch, i).ends);
    }
    c->branches.size = 0;
    c->branch_bytes = 0;
}

static const Branch *known_branch(Core *c, const Trie *t, int32_t node, int32_t state, int asked) {
    for (int32_t i = STATE(state).branch; i >= 0; i = AT(c->branches, Branch, i).next) {
        const Branch *b = &AT(c->branches, Branch, i);
        if (b->trie == t && b->node == node && (b->count >= 0) == asked) return b;
    }
    return NULL;
}

static int apply_branch(Core *c, const Branch *b, uint32_t *out, Array *ends) {
    for (int32_t w = 0; w < c->vocabulary.words; w++) out[w] |= b->row[w];
    return b->count > 0 && append(ends, b->ends, b->count, sizeof *b->ends) ? NO_MEMORY : 0;
}

static void make_room(Core *c) {
    if (c->branch_bytes <= MOST_BRANCH_BYTES) return;
    drop_branches(c);
    for (int32_t i = 0; i < c->states.size; i++) STATE(i).branch = UNKNOWN;
}

/* Keep the branch, which has its row, with the ends from `before` on. */
static int keep_branch(Core *c, Branch b, int32_t state, const Array *ends, int32_t before) {
    make_room(c);
    b.next = STATE(state).branch;
    b.count = ends ? ends->size - before : -1;
    if (b.count > 0) {
        if (!(b.ends = malloc(b.count * sizeof *b.ends))) return NO_MEMORY;
        memcpy(b.ends, &AT(*ends, int32_t, before), b.count * sizeof *b.ends);
    }
    if (append(&c->branches, &b, 1, sizeof b)) return free(b.ends), NO_MEMORY;
    c->branch_bytes += c->vocabulary.words * sizeof *b.row + (b.count > 0 ? b.count * sizeof *b.ends : 0);
    STATE(state).branch = c->branches.size - 1;
    return 0;
}

/* Walk a large subtree once for each state that reaches its node. */
static int walk_branch(Core *c, const Trie *t, int32_t node, int32_t state, uint32_t *out, Array *ends) {
    const Branch *known = known_branch(c, t, node, state, ends != NULL);
    if (known) return apply_branch(c, known, out, ends);
    Branch made = {.trie = t, .node = node, .row = calloc(c->vocabulary.words, sizeof *made.row)};
    if (!made.row) return NO_MEMORY;
    int32_t before = ends ? ends->size : 0;
    int code = walk(c, t, NULL, node + 1, t->node[node].skip, made.row, ends);
    for (int32_t w = 0; w < c->vocabulary.words && !code; w++) out[w] |= made.row[w];
    if (!code) code = keep_branch(c, made, state, ends, before);
    if (code) free(made.row);
    return code;
}

/* Set the bits of the tokens that nodes `from` to `to` lead to. `c->path` holds the state of the node above `from`;
 * the states of the uppermost nodes may be given in `roots`, by their bytes. Where the bottom may be left, the node
 * goes to `ends`, and a token that ends there waits for the caller unless threads remain. */
INTERNAL int walk(Core *c, const Trie *t, const int32_t *roots, int32_t from, int32_t to, uint32_t *out, Array *ends) {
    int32_t *path = c->path;
    for (int32_t i = from; i < to;) {
        const TrieNode n = t->node[i];
        int32_t depth = n.depth, byte = n.byte;
        int32_t target = roots && depth == 1 ? roots[byte] : step_known(c, path[depth - 1], byte);
        if (target == DEAD) {
            i = n.skip;
            continue;
        }
        if (target < 0) return target;
        if (spend(c, NODE_WORK)) return PAUSED;
        path[depth] = target;
        if (ends && STATE(target).final) {
            if (append(ends, &i, 1, sizeof i)) return NO_MEMORY;
            if (STATE(target).length) set_ids(t, i, i + 1, out);
        } else {
            set_ids(t, i, i + 1, out);
        }
        if (STATE(target).copied && !ends) {
            int code = walk_copied(c, t, target, i + 1, n.skip, out);
            if (code) return code;
            i = n.skip;
            continue;
        }
        int large = n.skip - i > LARGE && is_dense(c, target);
        int code = large ? walk_branch(c, t, i, target, out, ends) : 0;
        if (code) return code;
        i = large ? n.skip : i + 1;
    }
    return 0;
}

/* Walk a whole trie from a state. */
INTERNAL int walk_all(Core *c, const Trie *t, int32_t state, uint32_t *out) {
    const Class live = STATE(state).live;
    c->path[0] = state;
    for (int w = 0; w < CLASS_WORDS; w++)
        for (uint32_t bits = live.word[w]; bits; bits &= bits - 1) {
            int32_t root = t->roots[w * 32 + __builtin_ctz(bits)];
            int code = root < 0 ? 0 : walk(c, t, NULL, root, t->node[root].skip, out, NULL);
            if (code) return code;
        }
    return 0;
}

static int correct_between(Core *c, const Trie *t, int32_t from, int32_t to, uint32_t *out) {
    for (int32_t i = from; i < to;) {
        const TrieNode n = t->node[i];
        int32_t left = c->path[n.depth - 1], right = c->side[n.depth - 1];
        left = step_known(c, left, n.byte);
        right = right < 0 ? DEAD : step_known(c, right, n.byte);
        if (left < DEAD || right < DEAD) return left < DEAD ? left : right;
        if (spend(c, NODE_WORK)) return PAUSED;
        int32_t next = left == right || left == DEAD ? n.skip : i + 1;
        if (left != right) (left == DEAD ? clear_ids : set_ids)(t, i, next, out);
        c->path[n.depth] = left;
        c->side[n.depth] = right;
        i = next;
    }
    return 0;
}

/* Make the row of `other` that of `state`: only where the two part is there anything to do. */
INTERNAL int correct(Core *c, int32_t state, int32_t other, uint32_t *out) {
    const Trie *t = &c->vocabulary.all;
    const Class left = STATE(state).live, right = STATE(other).live;
    c->path[0] = state;
    c->side[0] = other;
    for (int w = 0; w < CLASS_WORDS; w++)
        for (uint32_t bits = left.word[w] | right.word[w]; bits; bits &= bits - 1) {
            int32_t root = t->roots[w * 32 + __builtin_ctz(bits)];
            int code = root < 0 ? 0 : correct_between(c, t, root, t->node[root].skip, out);
            if (code) return code;
        }
    return 0;
}
