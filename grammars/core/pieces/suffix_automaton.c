/* See suffix_automaton.h. */

#include "suffix_automaton.h"
#include "../base/grammar_core_types.h"

enum { FEW_EDGES = 8 };

static uint32_t edge_hash(int32_t state, uint32_t symbol) {
    uint64_t h = ((uint64_t)(uint32_t)state << 32 | symbol) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(h >> 32);
}

/* The slot of an edge of a state, or the one where it belongs. A slot has the state and the edge. */
static int32_t *slot_of(const SuffixAutomaton *s, int32_t state, uint32_t symbol) {
    const uint32_t mask = s->index.capacity - 1;
    uint32_t at = edge_hash(state, symbol) & mask;
    for (int32_t *slot; *(slot = s->index.slots + 2 * at) >= 0; at = (at + 1) & mask)
        if (slot[0] == state && s->edges[slot[1]].symbol == symbol) return slot;
    return s->index.slots + 2 * at;
}

static int grow_index(SuffixAutomaton *s) {
    EdgeIndex old = s->index;
    if ((old.used + 1) * 2 < old.capacity) return 0;
    s->index.capacity = old.capacity ? old.capacity * 2 : 1024;
    s->index.slots = malloc(s->index.capacity * 2 * sizeof *old.slots);
    if (!s->index.slots) return s->index = old, NO_MEMORY;
    memset(s->index.slots, 0xFF, s->index.capacity * 2 * sizeof *old.slots);
    for (uint32_t i = 0; i < old.capacity; i++)
        if (old.slots[2 * i] >= 0)
            memcpy(slot_of(s, old.slots[2 * i], s->edges[old.slots[2 * i + 1]].symbol), old.slots + 2 * i, 2 * sizeof *old.slots);
    free(old.slots);
    return 0;
}

static int index_edge(SuffixAutomaton *s, int32_t state, int32_t edge) {
    if (grow_index(s)) return NO_MEMORY;
    int32_t *slot = slot_of(s, state, s->edges[edge].symbol);
    slot[0] = state, slot[1] = edge;
    s->index.used++;
    return 0;
}

/* Only the edges of a state with many of them are in the index. */
static int index_edges(SuffixAutomaton *s, int32_t state) {
    for (int32_t i = s->states[state].edges; i >= 0; i = s->edges[i].next)
        if (index_edge(s, state, i)) return NO_MEMORY;
    return 0;
}

static int32_t find_edge(const SuffixAutomaton *s, int32_t state, uint32_t symbol) {
    if (s->states[state].degree > FEW_EDGES) {
        const int32_t *slot = slot_of(s, state, symbol);
        return slot[0] < 0 ? -1 : slot[1];
    }
    int32_t i = s->states[state].edges;
    while (i >= 0 && s->edges[i].symbol != symbol) i = s->edges[i].next;
    return i;
}

static int add_suffix_edge(SuffixAutomaton *s, int32_t state, uint32_t symbol, int32_t target) {
    if (s->edge_count == s->edge_capacity) {
        const int32_t capacity = s->edge_capacity * 2;
        SuffixEdge *edges = realloc(s->edges, capacity * sizeof *edges);
        if (!edges) return NO_MEMORY;
        s->edges = edges, s->edge_capacity = capacity;
    }
    SuffixState *from = &s->states[state];
    s->edges[s->edge_count] = (SuffixEdge){symbol, target, from->edges};
    from->edges = s->edge_count++;
    if (++from->degree == FEW_EDGES + 1) return index_edges(s, state);
    return from->degree > FEW_EDGES ? index_edge(s, state, from->edges) : 0;
}

static int32_t new_suffix_state(SuffixAutomaton *s, int32_t link, int32_t length) {
    s->states[s->state_count] = (SuffixState){link, length, -1, 0};
    return s->state_count++;
}

/* The state of the pieces of `from` with the symbol after them, apart from longer ones: that of the edge, or a copy of
 * it that these pieces have alone from now on. `begins`: the empty piece is among those that the symbol comes after. */
static int32_t separated(SuffixAutomaton *s, int32_t from, int32_t edge, int begins) {
    const int32_t known = s->edges[edge].target;
    const uint32_t symbol = s->edges[edge].symbol;
    if (s->states[known].length == s->states[from].length + 1) return known;
    const int32_t copy = new_suffix_state(s, s->states[known].link, s->states[from].length + 1);
    for (int32_t i = s->states[known].edges; i >= 0; i = s->edges[i].next)
        if (add_suffix_edge(s, copy, s->edges[i].symbol, s->edges[i].target)) return NO_MEMORY;
    for (; from > 0 || (!from && begins); from = s->states[from].link) {
        const int32_t i = find_edge(s, from, symbol);
        if (i < 0 || s->edges[i].target != known) break;
        s->edges[i].target = copy;
    }
    return s->states[known].link = copy;
}

/* Add the next symbol of the text; the state of all of it, which may have no pieces. */
static int32_t add_symbol(SuffixAutomaton *s, int32_t last, uint32_t symbol, int begins) {
    const int32_t made = new_suffix_state(s, 0, s->states[last].length + 1);
    int32_t at = last, edge = -1;
    for (; at > 0 || (!at && begins); at = s->states[at].link) {
        if ((edge = find_edge(s, at, symbol)) >= 0) break;
        if (add_suffix_edge(s, at, symbol, made)) return NO_MEMORY;
    }
    if (edge >= 0) {
        const int32_t link = separated(s, at, edge, begins);
        if (link < 0) return NO_MEMORY;
        s->states[made].link = link;
    }
    return made;
}

/* A piece ends where those do that it is the end of. */
static int mark_accepting(SuffixAutomaton *s, int32_t longest, int32_t *order) {
    int32_t *counts = calloc(longest + 2, sizeof *counts);
    if (!counts) return NO_MEMORY;
    for (int32_t i = 0; i < s->state_count; i++) counts[s->states[i].length + 1]++;
    for (int32_t i = 0; i <= longest; i++) counts[i + 1] += counts[i];
    for (int32_t i = 0; i < s->state_count; i++) order[counts[s->states[i].length]++] = i;
    free(counts);
    for (int32_t i = s->state_count - 1; i > 0; i--) {
        const int32_t link = s->states[order[i]].link;
        if (link > 0) s->accepting[link] |= s->accepting[order[i]];
    }
    return 0;
}

static int add_symbols(SuffixAutomaton *s, const uint32_t *symbols, int32_t count, const uint8_t *starts, const uint8_t *ends) {
    int32_t last = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!last && !starts[i]) continue; /* no piece is open */
        if ((last = add_symbol(s, last, symbols[i], starts[i])) < 0) return NO_MEMORY;
        s->accepting[last] = ends[i + 1];
    }
    return 0;
}

INTERNAL void free_suffixes(SuffixAutomaton *s) {
    free(s->states);
    free(s->edges);
    free(s->accepting);
    free(s->index.slots);
}

/* Build it; state 0 is that of the empty piece. `order` of the states by their lengths is left in the slots of the
 * index, which is no longer needed. */
INTERNAL int build_suffixes(SuffixAutomaton *s, const uint32_t *symbols, int32_t count, const uint8_t *starts, const uint8_t *ends) {
    const int32_t most = 2 * count + 2;
    memset(s, 0, sizeof *s);
    s->edge_capacity = 3 * count + 4;
    s->states = malloc(most * sizeof *s->states);
    s->edges = malloc(s->edge_capacity * sizeof *s->edges);
    s->accepting = calloc(most, 1);
    if (!s->states || !s->edges || !s->accepting || grow_index(s)) return NO_MEMORY;
    new_suffix_state(s, -1, 0);
    if (add_symbols(s, symbols, count, starts, ends)) return NO_MEMORY;
    free(s->index.slots);
    s->index = (EdgeIndex){malloc(s->state_count * sizeof *s->index.slots), 0, 0};
    return s->index.slots ? mark_accepting(s, count, s->index.slots) : NO_MEMORY;
}
