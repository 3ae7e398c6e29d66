/* See rule_lowering.h. */

#include "rule_lowering.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "network_tables.h"

INTERNAL int32_t add_node(Lowering *l, int32_t kind, int32_t a, int32_t b, int32_t c, int32_t loop) {
    const Node made = {kind, a, b, c, loop};
    return append(&l->tables->nodes, &made, 1, sizeof made) ? no_memory() : l->tables->nodes.size - 1;
}

INTERNAL int32_t shared(Lowering *l, int32_t kind, int32_t a, int32_t b, int32_t c, int32_t loop) {
    if (a < 0 || b < 0) return FAILED;
    int32_t *key = new_key(&l->memo, 5);
    if (!key) return no_memory();
    key[0] = kind, key[1] = a, key[2] = b, key[3] = c, key[4] = loop;
    int32_t entry = intern_key(&l->memo, 5);
    if (entry < 0) return FAILED;
    if (VALUE(l->memo, entry) == UNKNOWN) VALUE(l->memo, entry) = add_node(l, kind, a, b, c, loop);
    return VALUE(l->memo, entry);
}

INTERNAL Class range_class(int low, int high) {
    Class set = {{0}};
    for (int byte = low; byte <= high; byte++) set.word[byte >> 5] |= 1u << (byte & 31);
    return set;
}

INTERNAL int32_t byte_node(Lowering *l, const Class *set, int32_t after, int32_t loop, int32_t plain) {
    return shared(l, BYTE, class_id(l->tables, set), after, plain, loop);
}

INTERNAL int push_target(Lowering *l, int32_t target) {
    if (target < 0) return FAILED;
    return append(&l->targets, &target, 1, sizeof target) ? no_memory() : 0;
}

/* Drop what comes twice of the targets on the stack above `base`; how many there are. */
static int32_t unique_targets(Lowering *l, int32_t base) {
    Tables *t = l->tables;
    int32_t fresh = t->nodes.size - t->marks.size, kept = base;
    if (reserve(&t->marks, fresh, sizeof(int32_t))) return no_memory();
    memset((int32_t *)t->marks.data + t->marks.size, 0, fresh * sizeof(int32_t));
    t->marks.size += fresh;
    t->row++;
    for (int32_t i = base; i < l->targets.size; i++) {
        int32_t target = AT(l->targets, int32_t, i), *mark = &AT(t->marks, int32_t, target);
        if (*mark != t->row) AT(l->targets, int32_t, kept++) = target;
        *mark = t->row;
    }
    l->targets.size = base;
    return kept - base;
}

/* A node that goes on to any of the targets above `base`, which leave the stack. */
INTERNAL int32_t split(Lowering *l, int32_t base, int32_t loop) {
    int32_t count = unique_targets(l, base), offset = l->tables->edges.size;
    if (count < 0) return FAILED;
    if (count == 1) return AT(l->targets, int32_t, base);
    const int32_t *targets = (int32_t *)l->targets.data + base;
    if (append(&l->tables->edges, targets, count, sizeof *targets)) return no_memory();
    return add_node(l, SPLIT, offset, count, 0, loop);
}

/* A split over the targets above `base`, and over what comes after where the text may end; shared with its equals. */
INTERNAL int32_t split_shared(Lowering *l, int32_t base, int final, int32_t after, int32_t loop) {
    int32_t count = l->targets.size - base, *key = new_key(&l->memo, count + 3);
    if (!key) return no_memory();
    key[0] = KEY_TRIE, key[1] = loop, key[2] = final ? after : -1;
    if (count) memcpy(key + 3, &AT(l->targets, int32_t, base), count * sizeof *key);
    int32_t entry = intern_key(&l->memo, count + 3);
    if (entry < 0 || (final && push_target(l, after))) return FAILED;
    if (VALUE(l->memo, entry) == UNKNOWN) VALUE(l->memo, entry) = split(l, base, loop);
    l->targets.size = base;
    return VALUE(l->memo, entry);
}
