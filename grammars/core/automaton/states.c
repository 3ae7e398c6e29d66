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

static uint32_t frame_hash(Core *c, int32_t i) { return FRAME(i).hash; }

static uint32_t seen_hash(Core *c, int32_t i) { return hash_threads(&AT(c->seen, Thread, i), 1); }

static uint32_t state_hash(Core *c, int32_t i) { return STATE(i).hash; }


/* Threads in order of their nodes, counts and frames. */
static uint64_t order_of(const Thread *t) { return (uint64_t)((uint32_t)t->node ^ 1u << 31) << 32 | ((uint32_t)t->count ^ 1u << 31); }

static int is_before(const Thread *a, const Thread *b) {
    const uint64_t left = order_of(a), right = order_of(b);
    return left != right ? left < right : a->frame < b->frame;
}

static void insertion_sort(Thread *t, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        const Thread moved = t[i];
        int32_t at = i;
        for (; at && is_before(&moved, &t[at - 1]); at--) t[at] = t[at - 1];
        t[at] = moved;
    }
}

enum { RUN = 12 };

static void merge_runs(const Thread *from, int32_t middle, int32_t end, Thread *to) {
    int32_t left = 0, right = middle;
    while (left < middle && right < end) *to++ = is_before(&from[right], &from[left]) ? from[right++] : from[left++];
    while (left < middle) *to++ = from[left++];
    while (right < end) *to++ = from[right++];
}

/* Sorted runs are merged, each time twice as long, to and fro between the threads and a place of the same size. */
static int merge_sort(Core *c, Thread *t, int32_t count) {
    if (reserve(&c->sorting, count, sizeof *t)) return NO_MEMORY;
    Thread *from = t, *to = c->sorting.data;
    for (int32_t i = 0; i < count; i += RUN) insertion_sort(t + i, count - i < RUN ? count - i : RUN);
    for (int32_t width = RUN; width < count; width *= 2) {
        for (int32_t i = 0; i < count; i += 2 * width) {
            const int32_t end = count - i < 2 * width ? count - i : 2 * width;
            merge_runs(from + i, end < width ? end : width, end, to + i);
        }
        Thread *other = from;
        from = to, to = other;
    }
    if (from != t) memcpy(t, from, count * sizeof *t);
    return 0;
}

/* Most sets are small or in order. */
static int32_t sort_unique(Core *c, Thread *t, int32_t count) {
    int32_t sorted = 1;
    while (sorted < count && is_before(&t[sorted - 1], &t[sorted])) sorted++;
    if (sorted >= count) return count;
    if (count <= 2 * RUN) insertion_sort(t, count);
    else if (merge_sort(c, t, count)) return NO_MEMORY;
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (!kept || !same(&t[i], &t[kept - 1])) t[kept++] = t[i];
    return kept;
}

/* Whether one of some threads at the same node can do all that this one can: a loop that may be left, and the rest
 * equal, so that fewer iterations only leave more of them. */
static int is_dominated(Core *c, const Thread *t, const Thread *others, int32_t count) {
    if (!count) return 0;
    const int32_t loop = NODE(t->node).loop;
    if (loop < 0 || NODE(loop).kind != LOOP || t->count < NODE(loop).b) return 0;
    for (int32_t i = count - 1; i >= 0 && others[i].count >= NODE(loop).b; i--) /* they are sorted by their counts */
        if (others[i].frame == t->frame) return 1;
    return 0;
}

/* Drop what is dominated from sorted threads; how many are left. */
static int32_t drop_dominated(Core *c, Thread *t, int32_t count) {
    int32_t kept = 0;
    for (int32_t i = 0, first = 0; i < count; i++) {
        if (i && t[i].node != t[i - 1].node) first = kept;
        if (!is_dominated(c, &t[i], t + first, kept - first)) t[kept++] = t[i];
    }
    return kept;
}

#include "../automaton/frames.c"

/* The one frame under all threads of a frame; the bottom where there are several. */
static int32_t frame_under(const Thread *threads, int32_t count) {
    for (int32_t i = 1; i < count; i++)
        if (threads[i].frame != threads[0].frame) return 0;
    return threads[0].frame;
}

/* The frame of a set of threads that lies at the end of `returns`, and stays there if the frame is new. */
static int32_t intern_frame(Core *c, int32_t count) {
    if ((count = make_set(c, &c->returns, count)) < 0) return count;
    Thread *threads = tail(c, &c->returns);
    if (grow(c, &c->frame_index, c->frames.size, frame_hash)) return NO_MEMORY;
    const Frame frame = {c->returns.size, count, hash_threads(threads, count)};
    uint32_t mask = c->frame_index.room - 1, at = frame.hash & mask;
    for (int32_t i; (i = c->frame_index.slots[at]) >= 0; at = (at + 1) & mask)
        if (FRAME(i).hash == frame.hash && FRAME(i).length == count &&
            !memcmp(&AT(c->returns, Thread, FRAME(i).offset), threads, count * sizeof *threads))
            return i;
    const FrameNote note = {frame_under(threads, count), UNKNOWN};
    if (append(&c->frame_notes, &note, 1, sizeof note)) return NO_MEMORY;
    if (append(&c->frames, &frame, 1, sizeof frame)) return NO_MEMORY;
    c->returns.size += count;
    return c->frame_index.slots[at] = c->frames.size - 1;
}

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
        const Class *set = &AT(c->classes, Class, NODE(threads[i].node).a);
        for (int w = 0; w < CLASS_WORDS; w++) s.live.word[w] |= set->word[w];
    }
    s.only = only_byte(&s.live);
    if (append(&c->threads, threads, count, sizeof *threads)) return NO_MEMORY;
    return append(&c->states, &s, 1, sizeof s) ? NO_MEMORY : c->states.size - 1;
}

static int64_t held(Core *c) { return (int64_t)c->threads.size + c->returns.size + c->used.size + c->unions.size; }

/* The state of the threads in `kept`, which are sorted here. */
static int32_t intern(Core *c, int final) {
    if (!c->kept.size && !final) return DEAD;
    const int32_t count = make_set(c, &c->kept, c->kept.size);
    if (count < 0) return count;
    const Thread *threads = c->kept.data;
    if (grow(c, &c->state_index, c->states.size, state_hash)) return NO_MEMORY;
    uint32_t hash = hash_threads(threads, count) * 2 + final, mask = c->state_index.room - 1, at = hash & mask;
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
