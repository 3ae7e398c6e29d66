/* See flattened_splits.h. */

#include "flattened_splits.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

typedef struct { int32_t count, splits, node[MOST_FLAT], split[MOST_FLAT]; } Flat;

/* Add a node unless it is there; 1 where there is no room. */
static int add_flat(int32_t *nodes, int32_t *count, int32_t node) {
    for (int32_t i = 0; i < *count; i++)
        if (nodes[i] == node) return 0;
    if (*count == MOST_FLAT) return 1;
    nodes[(*count)++] = node;
    return 0;
}

/* Collect the nodes; 1 where they are too many. The splits that are found wait in the order in which they were. */
static int flatten(Core *c, int32_t split, Flat *f) {
    int full = add_flat(f->split, &f->splits, split);
    for (int32_t i = 0; i < f->splits && !full; i++) {
        const Node *n = &NODE(f->split[i]);
        for (int32_t k = 0; k < n->b && !full; k++) {
            const int32_t target = AT(c->edges, int32_t, n->a + k);
            full = NODE(target).kind == SPLIT ? add_flat(f->split, &f->splits, target) : add_flat(f->node, &f->count, target);
        }
    }
    return full;
}

/* Bytes come first, in order of their nodes, as sets of threads have them; how many there are. */
static int32_t bytes_first(Core *c, Flat *f) {
    int32_t bytes = 0;
    for (int32_t i = 0; i < f->count; i++) {
        const int32_t node = f->node[i];
        int32_t at = i;
        if (NODE(node).kind != BYTE) continue;
        for (; at > bytes; at--) f->node[at] = f->node[at - 1];
        for (; at && f->node[at - 1] > node; at--) f->node[at] = f->node[at - 1];
        f->node[at] = node;
        bytes++;
    }
    return bytes;
}

static int keep_flat(Core *c, int32_t split) {
    Flat f = {.count = 0};
    const int full = flatten(c, split, &f);
    AT(c->flat_at, int32_t, split) = full ? NOT_FLAT : c->flats.size + 1;
    if (full) return 0;
    const int32_t head[] = {f.count, bytes_first(c, &f)};
    return append(&c->flats, head, 2, sizeof *head) || append(&c->flats, f.node, f.count, sizeof *f.node) ? NO_MEMORY : 0;
}

/* Where a split is in `flats`: the number of its nodes, that of bytes among them, and then the nodes, bytes first.
 * NOT_FLAT where they are many, or NO_MEMORY. */
INTERNAL int32_t flat_of(Core *c, int32_t split) {
    if (!AT(c->flat_at, int32_t, split) && keep_flat(c, split)) return NO_MEMORY;
    const int32_t found = AT(c->flat_at, int32_t, split);
    return found < 0 ? NOT_FLAT : found - 1;
}
