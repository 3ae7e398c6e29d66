/* The hot core of the grammars: determinises the network lazily and walks the token trie. `twin.py` is the same in
 * plain Python and says what the numbers mean. Called through ctypes without the GIL; a core is not reentrant, its
 * caller holds a lock. Results below zero are codes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

enum { BYTE, SPLIT, CALL, ENTER, LOOP, NEXT, RETURN };
enum { DEAD = -1, NEED = -2, FULL = -3, NO_MEMORY = -4, UNKNOWN = -5 };
enum { MAX_THREADS = 20000, CLASS_WORDS = 8 };

typedef struct { int32_t kind, a, b, c, loop; } Node;
typedef struct { int32_t node, count, frame; } Thread; /* a frame is the thread that goes on when it is popped */
typedef struct { uint32_t word[CLASS_WORDS]; } Class;
typedef struct { int32_t offset, length, canonical; uint8_t final; Class live; int32_t *row; } State;
typedef struct { void *data; int32_t size, room; } Array;
typedef struct { int32_t *slots; uint32_t room; } Index;

typedef struct {
    int32_t size;
    const uint8_t *byte;
    const uint16_t *depth;
    const int32_t *skip, *first, *ids;
} Trie;

typedef struct {
    Trie all, rest;
    const uint32_t *slices;
    int32_t longest, words, reach;
} Vocabulary;

typedef struct {
    Array nodes, edges, classes, entries;
    Array frames, canonical_frames, threads, states;
    Index frame_index, state_index, seen_index;
    Array work, kept, seen;
    int32_t *path, limit, wanted;
    Vocabulary vocabulary;
} Core;

static const Class PLAIN = {{0, 0xFFFFFFFBu, 0xEFFFFFFFu, ~0u, ~0u, ~0u, ~0u, ~0u}};

#define AT(array, type, i) (((type *)(array).data)[i])
#define NODE(i) AT(c->nodes, Node, i)
#define STATE(i) AT(c->states, State, i)
#define FRAME(i) AT(c->frames, Thread, i)

static int reserve(Array *a, int32_t more, size_t item) {
    if (a->size + more <= a->room) return 0;
    int32_t room = a->room ? a->room : 64;
    while (room < a->size + more) room *= 2;
    void *data = realloc(a->data, room * item);
    if (!data) return NO_MEMORY;
    a->data = data;
    a->room = room;
    return 0;
}

static int append(Array *a, const void *items, int32_t count, size_t item) {
    if (reserve(a, count, item)) return NO_MEMORY;
    if (count) memcpy((char *)a->data + a->size * item, items, count * item);
    a->size += count;
    return 0;
}

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

static int32_t canonical_count(Core *c, int32_t loop, int32_t count) {
    if (loop < 0) return count;
    int64_t least = NODE(loop).b, most = NODE(loop).c, reach = c->vocabulary.reach;
    if (most >= 0 && most - count <= reach) return count;
    if (count >= least) return most < 0 || most - least > reach ? (int32_t)least : count;
    return least - count > reach && (most < 0 || most > reach) ? 0 : count;
}

static int32_t canonical_frame(Core *c, int32_t frame) {
    if (!frame) return 0;
    int32_t known = AT(c->canonical_frames, int32_t, frame);
    if (known != UNKNOWN) return known;
    Thread t = FRAME(frame);
    int32_t parent = canonical_frame(c, t.frame);
    if (parent < 0) return parent;
    int32_t made = push_frame(c, t.node, canonical_count(c, NODE(t.node).loop, t.count), parent);
    if (made >= 0) AT(c->canonical_frames, int32_t, frame) = made;
    return made;
}

static int32_t unique(Thread *t, int32_t count) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++)
        if (!kept || !same(&t[i], &t[kept - 1])) t[kept++] = t[i];
    return kept;
}

API int32_t core_canonical(Core *c, int32_t state) {
    if (STATE(state).canonical != UNKNOWN) return STATE(state).canonical;
    begin_closure(c);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        Thread t = AT(c->threads, Thread, STATE(state).offset + i);
        t.count = canonical_count(c, NODE(t.node).loop, t.count);
        t.frame = canonical_frame(c, t.frame);
        if (t.frame < 0 || append(&c->kept, &t, 1, sizeof t)) return NO_MEMORY;
    }
    Thread *threads = c->kept.data;
    if (c->kept.size > 1) qsort(threads, c->kept.size, sizeof *threads, compare);
    int32_t made = intern(c, threads, unique(threads, c->kept.size), STATE(state).final);
    if (made >= 0) STATE(state).canonical = made;
    return made;
}

/* How many characters of plain string text may come: 0 where slices do not apply exactly. */
API int32_t core_plain_room(Core *c, int32_t state) {
    int32_t longest = c->vocabulary.longest, best = 0, loop = 0;
    Thread text = {0, 0, 0}, *threads = &AT(c->threads, Thread, STATE(state).offset);
    for (int32_t i = 0; i < STATE(state).length; i++) {
        const Node *n = &NODE(threads[i].node);
        if (!n->c) continue;
        int32_t most = n->c == 2 ? NODE(n->loop).c : -1;
        int32_t room = most < 0 || most - threads[i].count > longest ? longest : most - threads[i].count;
        if (room > best) {
            best = room;
            text = threads[i];
            loop = n->loop;
        }
    }
    for (int32_t i = 0; best < longest && i < STATE(state).length; i++) {
        const Node *n = &NODE(threads[i].node);
        const Class *set = &AT(c->classes, Class, n->a);
        if (n->loop == loop && threads[i].count == text.count && threads[i].frame == text.frame) continue;
        for (int w = 0; w < CLASS_WORDS; w++)
            if (set->word[w] & PLAIN.word[w]) return 0;
    }
    return best;
}

static int walk(Core *c, int32_t state, const Trie *trie, uint32_t *out) {
    int32_t *path = c->path;
    path[0] = state;
    for (int32_t i = 0; i < trie->size;) {
        int32_t from = path[trie->depth[i] - 1];
        const int32_t *row = STATE(from).row;
        int32_t target = row ? row[trie->byte[i]] : UNKNOWN;
        if (target == UNKNOWN) target = core_step(c, from, trie->byte[i]);
        if (target == DEAD) {
            i = trie->skip[i];
            continue;
        }
        if (target < 0) return target;
        path[trie->depth[i]] = target;
        for (int32_t k = trie->first[i]; k < trie->first[i + 1]; k++) out[trie->ids[k] >> 5] |= 1u << (trie->ids[k] & 31);
        i++;
    }
    return 0;
}

/* Set the bits of the tokens that keep the text viable, in a zeroed row. */
API int32_t core_mask(Core *c, int32_t state, uint32_t *out) {
    state = core_canonical(c, state);
    if (state < 0) return state;
    int32_t room = core_plain_room(c, state), words = c->vocabulary.words;
    if (room > 0) memcpy(out, c->vocabulary.slices + (size_t)room * words, words * sizeof *out);
    return walk(c, state, room > 0 ? &c->vocabulary.rest : &c->vocabulary.all, out);
}

/* The bytes that must come next; the number of them, or a code. */
API int32_t core_forced(Core *c, int32_t state, uint8_t *out, int32_t most) {
    int32_t found = 0;
    while (found < most && !STATE(state).final) {
        int byte = -1, choices = 0;
        for (int w = 0; w < CLASS_WORDS; w++)
            for (uint32_t bits = STATE(state).live.word[w]; bits && choices < 2; bits &= bits - 1, choices++)
                byte = w * 32 + __builtin_ctz(bits);
        if (choices != 1) break;
        state = core_step(c, state, byte);
        if (state < 0) return state;
        out[found++] = (uint8_t)byte;
    }
    return found;
}

API int32_t core_size(Core *c) { return c->states.size; }
API int32_t core_wanted(Core *c) { return c->wanted; }
API int32_t core_final(Core *c, int32_t state) { return STATE(state).final; }
API int32_t core_thread_count(Core *c, int32_t state) { return STATE(state).length; }
API void core_live(Core *c, int32_t state, uint32_t *out) { memcpy(out, &STATE(state).live, sizeof(Class)); }
API void core_frame(Core *c, int32_t frame, int32_t *out) { memcpy(out, &FRAME(frame), sizeof(Thread)); }
API void core_threads(Core *c, int32_t state, int32_t *out) {
    memcpy(out, &AT(c->threads, Thread, STATE(state).offset), STATE(state).length * sizeof(Thread));
}

/* Take over what the tables have gained; counts are of the whole tables. */
API int32_t core_extend(Core *c, const Node *nodes, int32_t n, const int32_t *edges, int32_t m, const Class *classes,
                        int32_t k, const int32_t *entries, int32_t r) {
    c->entries.size = 0;
    if (append(&c->nodes, nodes + c->nodes.size, n - c->nodes.size, sizeof *nodes)) return NO_MEMORY;
    if (append(&c->edges, edges + c->edges.size, m - c->edges.size, sizeof *edges)) return NO_MEMORY;
    if (append(&c->classes, classes + c->classes.size, k - c->classes.size, sizeof *classes)) return NO_MEMORY;
    return append(&c->entries, entries, r, sizeof *entries);
}

API void core_free(Core *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->states.size; i++) free(STATE(i).row);
    Array *arrays[] = {&c->nodes,   &c->edges,  &c->classes, &c->entries, &c->frames,   &c->canonical_frames,
                       &c->threads, &c->states, &c->work,    &c->kept,    &c->seen};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]->data);
    free(c->frame_index.slots);
    free(c->state_index.slots);
    free(c->seen_index.slots);
    free(c->path);
    free(c);
}

API Core *core_new(const Vocabulary *vocabulary, int32_t limit) {
    Core *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->vocabulary = *vocabulary;
    c->limit = limit;
    c->path = malloc((vocabulary->reach + 1) * sizeof *c->path);
    if (!c->path || push_frame(c, -1, 0, 0) < 0) {
        core_free(c);
        return NULL;
    }
    return c;
}

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_core", .m_doc = "The grammars' core, called by ctypes.", .m_size = -1};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }
