/* See nfa_thread_sets.h. */

#include "nfa_thread_sets.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

INTERNAL int has(const Class *set, int byte) { return set->word[byte >> 5] >> (byte & 31) & 1; }

INTERNAL uint32_t hash_threads(const Thread *t, int32_t count) {
    uint64_t h = 0x9E3779B97F4A7C15ull + count;
    for (int32_t i = 0; i < count; i++) {
        h = (h ^ (uint32_t)t[i].node) * 0xFF51AFD7ED558CCDull;
        h = (h ^ (h >> 32) ^ (uint32_t)t[i].count) * 0xC4CEB9FE1A85EC53ull;
        h = (h ^ (h >> 29) ^ (uint32_t)t[i].frame) * 0x9E3779B97F4A7C15ull;
    }
    return (uint32_t)(h ^ (h >> 32));
}

INTERNAL int same(const Thread *x, const Thread *y) {
    return x->node == y->node && x->count == y->count && x->frame == y->frame;
}

/* Open addressing; `hash_of` recomputes an entry's hash when the index grows. */
INTERNAL int grow(Core *c, Index *index, int32_t entries, uint32_t (*hash_of)(Core *, int32_t)) {
    if (index->capacity && (uint32_t)entries * 2 < index->capacity) return 0;
    uint32_t capacity = index->capacity ? index->capacity * 2 : 256;
    int32_t *slots = malloc(capacity * sizeof *slots);
    if (!slots) return NO_MEMORY;
    memset(slots, 0xFF, capacity * sizeof *slots);
    for (int32_t i = 0; i < entries; i++) {
        uint32_t at = hash_of(c, i) & (capacity - 1);
        while (slots[at] >= 0) at = (at + 1) & (capacity - 1);
        slots[at] = i;
    }
    free(index->slots);
    index->slots = slots;
    index->capacity = capacity;
    return 0;
}

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
INTERNAL int32_t sort_unique(Core *c, Thread *t, int32_t count) {
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
INTERNAL int32_t drop_dominated(Core *c, Thread *t, int32_t count) {
    int32_t kept = 0;
    for (int32_t i = 0, first = 0; i < count; i++) {
        if (i && t[i].node != t[i - 1].node) first = kept;
        if (!is_dominated(c, &t[i], t + first, kept - first)) t[kept++] = t[i];
    }
    return kept;
}
