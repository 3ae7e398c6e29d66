/* See unordered_list_subsets.h. */

#include "unordered_list_subsets.h"
#include "nfa_thread_sets.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"

INTERNAL const PartTable *part_table(Core *c, const Node *pick) { return (void *)&AT(c->edges, int32_t, pick->a); }

/* The empty subset has no words. */
INTERNAL int holds(Core *c, const Subset *s, int32_t part) {
    return part >> 5 < s->words && AT(c->used, uint32_t, s->offset + (part >> 5)) >> (part & 31) & 1;
}

static uint32_t subset_hash(Core *c, int32_t i) {
    const Subset *s = &SUBSET(i);
    uint64_t h = 0x9E3779B97F4A7C15ull ^ (uint64_t)(uint32_t)s->list << 32 ^ (uint32_t)s->members;
    for (int32_t w = 0; w < s->words; w++) h = (h ^ h >> 29 ^ AT(c->used, uint32_t, s->offset + w)) * 0xFF51AFD7ED558CCDull;
    return (uint32_t)(h ^ h >> 32);
}

static int same_subset(Core *c, const Subset *x, const Subset *y) {
    const uint32_t *used = c->used.data;
    return x->list == y->list && x->members == y->members &&
           (!x->words || !memcmp(used + x->offset, used + y->offset, x->words * sizeof *used));
}

/* The subset after one more member, its bits at the end of `used`, where only `intern_subset` makes them stay. */
INTERNAL int add_member(Core *c, int32_t list, int32_t from, int32_t part, Subset *found) {
    const Node *pick = &NODE(list);
    const PartTable *table = part_table(c, pick);
    int32_t words = (pick->b + 31) / 32, counted = table->most >= 0 ? table->most : table->least;
    if (reserve(&c->used, words, sizeof(uint32_t))) return NO_MEMORY;
    uint32_t *used = (uint32_t *)c->used.data + c->used.size;
    const uint32_t *before = from ? (uint32_t *)c->used.data + SUBSET(from).offset : NULL;
    for (int32_t w = 0; w < words; w++) used[w] = before ? before[w] : 0;
    if (part < pick->b) used[part >> 5] |= 1u << (part & 31);
    int32_t members = SUBSET(from).members + 1;
    *found = (Subset){list, members < counted ? members : counted, c->used.size, words};
    return 0;
}

INTERNAL int32_t intern_subset(Core *c, const Subset *s) {
    int32_t made = c->subsets.size;
    if (append(&c->subsets, s, 1, sizeof *s)) return NO_MEMORY;
    c->subsets.size--;
    if (grow(c, &c->subset_index, made, subset_hash)) return NO_MEMORY;
    uint32_t mask = c->subset_index.capacity - 1, at = subset_hash(c, made) & mask;
    for (int32_t i; (i = c->subset_index.slots[at]) >= 0; at = (at + 1) & mask)
        if (same_subset(c, &SUBSET(i), s)) return i;
    c->subsets.size++;
    c->used.size += s->words;
    return c->subset_index.slots[at] = made;
}

static int32_t missing_parts(Core *c, const PartTable *table, const Subset *s) {
    int32_t missing = table->required;
    for (int32_t i = 0; i < table->required; i++) missing -= holds(c, s, i);
    return missing;
}

/* Whether there is room for a member that is not required. */
INTERNAL int has_spare(Core *c, const PartTable *table, const Subset *s) {
    return table->most < 0 || s->members + missing_parts(c, table, s) < table->most;
}

/* Whether a part, or the extra (the one after the last part), may come next. */
INTERNAL int may_pick(Core *c, const Node *pick, const Subset *s, int32_t part, int spare) {
    const PartTable *table = part_table(c, pick);
    if (part == pick->b) return spare && table->extra >= 0;
    return (spare || part < table->required) && !holds(c, s, part);
}

INTERNAL int may_go_on(Core *c, const Node *pick, const Subset *s) {
    int spare = has_spare(c, part_table(c, pick), s);
    for (int32_t part = 0; part <= pick->b; part++)
        if (may_pick(c, pick, s, part, spare)) return 1;
    return 0;
}

INTERNAL int may_close(Core *c, const PartTable *table, const Subset *s) {
    return s->members >= table->least && !missing_parts(c, table, s);
}
