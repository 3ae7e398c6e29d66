/* Lazy determinisation: what a set of threads reaches, with and without reading a byte. */

/* Remember a thread of the running closure and queue it, unless it was there. */
static int visit(Core *c, int32_t node, int32_t count, int32_t frame) {
    Thread t = {node, count, frame};
    if (grow(c, &c->seen_index, c->seen.size, seen_hash)) return NO_MEMORY;
    uint32_t mask = c->seen_index.room - 1, at = hash_threads(&t, 1) & mask;
    for (int32_t i; (i = c->seen_index.slots[at]) >= 0; at = (at + 1) & mask)
        if (same(&AT(c->seen, Thread, i), &t)) return 0;
    if (c->seen.size >= MAX_THREADS) return FULL;
    c->seen_index.slots[at] = c->seen.size;
    return append(&c->seen, &t, 1, sizeof t) || append(&c->work, &t, 1, sizeof t) ? NO_MEMORY : 0;
}

static int visit_pushed(Core *c, int32_t target, int32_t after, const Thread *t) {
    int32_t frame = push_frame(c, after, t->count, t->frame);
    return frame < 0 ? frame : visit(c, target, 0, frame);
}

static int visit_popped(Core *c, int32_t frame) {
    Thread t = FRAME(frame);
    return visit(c, t.node, t.count, t.frame);
}

static int visit_rule(Core *c, const Node *n, const Thread *t) {
    int32_t entry = AT(c->entries, int32_t, n->a);
    if (entry < 0) {
        c->wanted = n->a;
        return NEED;
    }
    return visit_pushed(c, entry, n->b, t);
}

static int silent(Core *c, const Thread *t) {
    const Node *n = &NODE(t->node);
    int code = 0;
    switch (n->kind) {
    case SPLIT:
        for (int32_t i = 0; i < n->b && !code; i++)
            code = visit(c, AT(c->edges, int32_t, n->a + i), t->count, t->frame);
        return code;
    case CALL: return visit_rule(c, n, t);
    case ENTER: return visit_pushed(c, n->a, n->b, t);
    case NEXT: {
        const Node *loop = &NODE(n->a);
        int32_t count = loop->c < 0 && t->count >= loop->b ? loop->b : t->count + 1;
        return visit(c, n->a, count, t->frame);
    }
    case LOOP:
        if (n->c < 0 || t->count < n->c) code = visit(c, n->a, t->count, t->frame);
        return !code && t->count >= n->b ? visit_popped(c, t->frame) : code;
    default: return visit_popped(c, t->frame);
    }
}

static void begin_closure(Core *c) {
    uint32_t mask = c->seen_index.room - 1;
    for (int32_t i = 0; i < c->seen.size; i++)
        for (uint32_t at = seen_hash(c, i) & mask; c->seen_index.slots[at] >= 0; at = (at + 1) & mask)
            c->seen_index.slots[at] = -1;
    c->seen.size = c->work.size = c->kept.size = 0;
}

/* The state that the queued threads reach without reading a byte. */
static int32_t end_closure(Core *c) {
    int final = 0;
    while (c->work.size) {
        Thread t = AT(c->work, Thread, --c->work.size);
        int32_t kind = NODE(t.node).kind;
        if (kind == BYTE) {
            if (append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
        } else if (kind == RETURN && !t.frame) {
            final = 1;
        } else {
            int code = silent(c, &t);
            if (code) return code;
        }
    }
    return intern(c, c->kept.data, c->kept.size, final);
}

static int make_row(Core *c, int32_t state) {
    int32_t *row = malloc(256 * sizeof *row);
    if (!row) return NO_MEMORY;
    for (int b = 0; b < 256; b++) row[b] = has(&STATE(state).live, b) ? UNKNOWN : DEAD;
    STATE(state).row = row;
    return 0;
}

/* Fill the row for a byte and for all bytes that the state's threads cannot tell from it. */
static int32_t fill(Core *c, int32_t state, int byte) {
    Class alike;
    memset(&alike, 0xFF, sizeof alike);
    begin_closure(c);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        const Class *set = &AT(c->classes, Class, NODE(t.node).a);
        uint32_t flip = has(set, byte) ? 0 : ~0u;
        for (int w = 0; w < CLASS_WORDS; w++) alike.word[w] &= set->word[w] ^ flip;
        int code = flip ? 0 : visit(c, NODE(t.node).b, t.count, t.frame);
        if (code) return code;
    }
    int32_t target = end_closure(c);
    if (target < DEAD) return target;
    for (int b = 0; b < 256; b++)
        if (has(&alike, b)) STATE(state).row[b] = target;
    return target;
}

API int32_t core_step(Core *c, int32_t state, int32_t byte) {
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
