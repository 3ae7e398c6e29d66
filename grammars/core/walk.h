/* Walks of a token trie, depth first. */

static void set_ids(const Trie *t, int32_t from, int32_t to, uint32_t *out) {
    for (int32_t k = t->first[from]; k < t->first[to]; k++) out[t->ids[k] >> 5] |= 1u << (t->ids[k] & 31);
}

static void clear_ids(const Trie *t, int32_t from, int32_t to, uint32_t *out) {
    for (int32_t k = t->first[from]; k < t->first[to]; k++) out[t->ids[k] >> 5] &= ~(1u << (t->ids[k] & 31));
}

static int32_t step_known(Core *c, int32_t state, int byte) {
    const int32_t *row = STATE(state).row;
    int32_t target = row ? row[byte] : UNKNOWN;
    return target == UNKNOWN ? core_step(c, state, byte) : target;
}

enum { LARGE = 4000, DENSE = 20, MOST_BRANCH_BYTES = 8 << 20 };

/* Whether so many bytes may come that a walk would be long. */
static int is_dense(Core *c, int32_t state) {
    int count = 0;
    for (int w = 0; w < CLASS_WORDS; w++) count += __builtin_popcount(STATE(state).live.word[w]);
    return count >= DENSE;
}

static void drop_branches(Core *c) {
    for (int32_t i = 0; i < c->branches.size; i++) free(AT(c->branches, Branch, i).row);
    c->branches.size = 0;
}

static const uint32_t *known_branch(Core *c, const Trie *t, int32_t node, int32_t state) {
    for (int32_t i = STATE(state).branch; i >= 0; i = AT(c->branches, Branch, i).next)
        if (AT(c->branches, Branch, i).trie == t && AT(c->branches, Branch, i).node == node)
            return AT(c->branches, Branch, i).row;
    return NULL;
}

static int keep_branch(Core *c, const Trie *t, int32_t node, int32_t state, uint32_t *row) {
    if ((int64_t)c->branches.size * c->vocabulary.words * 4 > MOST_BRANCH_BYTES) {
        drop_branches(c);
        for (int32_t i = 0; i < c->states.size; i++) STATE(i).branch = UNKNOWN;
    }
    const Branch made = {t, node, STATE(state).branch, row};
    if (append(&c->branches, &made, 1, sizeof made)) return NO_MEMORY;
    STATE(state).branch = c->branches.size - 1;
    return 0;
}

static int walk(Core *, const Trie *, const int32_t *, int32_t, int32_t, uint32_t *, Array *);

/* Walk a large subtree once for each state that reaches its node; not remembered where the bottom may be left. */
static int walk_branch(Core *c, const Trie *t, int32_t node, int32_t state, uint32_t *out, Array *ends) {
    const uint32_t *known = known_branch(c, t, node, state);
    uint32_t *row = known ? NULL : calloc(c->vocabulary.words, sizeof *row);
    if (!known && !row) return NO_MEMORY;
    int32_t before = ends ? ends->size : 0;
    int code = known ? 0 : walk(c, t, NULL, node + 1, t->skip[node], row, ends);
    const uint32_t *found = known ? known : row;
    for (int32_t w = 0; w < c->vocabulary.words && !code; w++) out[w] |= found[w];
    int fresh = row && !code && !(ends && ends->size > before);
    if (fresh) code = keep_branch(c, t, node, state, row);
    if (!fresh || code) free(row);
    return code;
}

/* Set the bits of the tokens that nodes `from` to `to` lead to. `c->path` holds the state of the node above `from`;
 * the states of the uppermost nodes may be given in `roots`, by their bytes. Where the bottom may be left, the node
 * goes to `ends`, and a token that ends there waits for the caller unless threads remain. */
static int walk(Core *c, const Trie *t, const int32_t *roots, int32_t from, int32_t to, uint32_t *out, Array *ends) {
    int32_t *path = c->path;
    for (int32_t i = from; i < to;) {
        int32_t depth = t->depth[i], byte = t->byte[i];
        int32_t target = roots && depth == 1 ? roots[byte] : step_known(c, path[depth - 1], byte);
        if (target == DEAD) {
            i = t->skip[i];
            continue;
        }
        if (target < 0) return target;
        path[depth] = target;
        if (ends && STATE(target).final) {
            if (append(ends, &i, 1, sizeof i)) return NO_MEMORY;
            if (STATE(target).length) set_ids(t, i, i + 1, out);
        } else {
            set_ids(t, i, i + 1, out);
        }
        int large = t->skip[i] - i > LARGE && is_dense(c, target);
        int code = large ? walk_branch(c, t, i, target, out, ends) : 0;
        if (code) return code;
        i = large ? t->skip[i] : i + 1;
    }
    return 0;
}

/* Make the row of `other` that of `state`: only where the two part is there anything to do. */
static int correct(Core *c, int32_t state, int32_t other, uint32_t *out) {
    const Trie *t = &c->vocabulary.all;
    c->path[0] = state;
    c->side[0] = other;
    for (int32_t i = 0; i < t->size;) {
        int32_t depth = t->depth[i], left = c->path[depth - 1], right = c->side[depth - 1];
        left = step_known(c, left, t->byte[i]);
        right = right < 0 ? DEAD : step_known(c, right, t->byte[i]);
        if (left < DEAD || right < DEAD) return left < DEAD ? left : right;
        int32_t next = left == right || left == DEAD ? t->skip[i] : i + 1;
        if (left != right) (left == DEAD ? clear_ids : set_ids)(t, i, next, out);
        c->path[depth] = left;
        c->side[depth] = right;
        i = next;
    }
    return 0;
}
