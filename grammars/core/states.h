/* Interning: equal frames and equal sets of threads are one number. */

static int has(const Class *set, int byte) { return set->word[byte >> 5] >> (byte & 31) & 1; }

static uint32_t hash_threads(const Thread *t, int32_t count) {
    uint64_t h = 0x9E3779B97F4A7C15ull + count;
    for (int32_t i = 0; i < count; i++) {
        h = (h ^ (uint32_t)t[i].node) * 0xFF51AFD7ED558CCDull;
        h = (h ^ (h >> 32) ^ (uint32_t)t[i].count) * 0xC4CEB9FE1A85EC53ull;
        h = (h ^ (h >> 29) ^ (uint32_t)t[i].frame) * 0x9E3779B97F4A7C15ull;
    }
    return (uint32_t)(h ^ (h >> 32));
}

static int same(const Thread *x, const Thread *y) {
    return x->node == y->node && x->count == y->count && x->frame == y->frame;
}

/* Open addressing; `hash_of` recomputes an entry's hash when the index grows. */
static int grow(Core *c, Index *index, int32_t entries, uint32_t (*hash_of)(Core *, int32_t)) {
    if (index->room && (uint32_t)entries * 2 < index->room) return 0;
    uint32_t room = index->room ? index->room * 2 : 256;
    int32_t *slots = malloc(room * sizeof *slots);
    if (!slots) return NO_MEMORY;
    memset(slots, 0xFF, room * sizeof *slots);
    for (int32_t i = 0; i < entries; i++) {
        uint32_t at = hash_of(c, i) & (room - 1);
        while (slots[at] >= 0) at = (at + 1) & (room - 1);
        slots[at] = i;
    }
    free(index->slots);
    index->slots = slots;
    index->room = room;
    return 0;
}

static uint32_t frame_hash(Core *c, int32_t i) { return hash_threads(&FRAME(i), 1); }

static uint32_t seen_hash(Core *c, int32_t i) { return hash_threads(&AT(c->seen, Thread, i), 1); }

static uint32_t state_hash(Core *c, int32_t i) {
    return hash_threads(&AT(c->threads, Thread, STATE(i).offset), STATE(i).length) * 2 + STATE(i).final;
}

static int32_t push_frame(Core *c, int32_t node, int32_t count, int32_t parent) {
    Thread frame = {node, count, parent};
    if (grow(c, &c->frame_index, c->frames.size, frame_hash)) return NO_MEMORY;
    uint32_t mask = c->frame_index.room - 1, at = hash_threads(&frame, 1) & mask;
    for (int32_t i; (i = c->frame_index.slots[at]) >= 0; at = (at + 1) & mask)
        if (same(&FRAME(i), &frame)) return i;
    int32_t unknown = UNKNOWN;
    if (append(&c->frames, &frame, 1, sizeof frame)) return NO_MEMORY;
    if (append(&c->canonical_frames, &unknown, 1, sizeof unknown)) return NO_MEMORY;
    return c->frame_index.slots[at] = c->frames.size - 1;
}

static int compare(const void *x, const void *y) {
    const Thread *a = x, *b = y;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->count != b->count) return a->count < b->count ? -1 : 1;
    return a->frame < b->frame ? -1 : a->frame > b->frame;
}

static int32_t new_state(Core *c, const Thread *threads, int32_t count, int final) {
    State s = {c->threads.size, count, UNKNOWN, final, {{0}}, NULL};
    for (int32_t i = 0; i < count; i++) {
        const Class *set = &AT(c->classes, Class, NODE(threads[i].node).a);
        for (int w = 0; w < CLASS_WORDS; w++) s.live.word[w] |= set->word[w];
    }
    if (append(&c->threads, threads, count, sizeof *threads)) return NO_MEMORY;
    return append(&c->states, &s, 1, sizeof s) ? NO_MEMORY : c->states.size - 1;
}

/* The state of a set of threads, which is sorted here. */
static int32_t intern(Core *c, Thread *threads, int32_t count, int final) {
    if (!count && !final) return DEAD;
    if (count > 1) qsort(threads, count, sizeof *threads, compare);
    if (grow(c, &c->state_index, c->states.size, state_hash)) return NO_MEMORY;
    uint32_t mask = c->state_index.room - 1, at = (hash_threads(threads, count) * 2 + final) & mask;
    for (int32_t i; (i = c->state_index.slots[at]) >= 0; at = (at + 1) & mask) {
        const State *s = &STATE(i);
        if (s->length == count && s->final == final &&
            !memcmp(&AT(c->threads, Thread, s->offset), threads, count * sizeof *threads))
            return i;
    }
    if (c->states.size >= c->limit) return FULL;
    int32_t made = new_state(c, threads, count, final);
    return made < 0 ? made : (c->state_index.slots[at] = made);
}
