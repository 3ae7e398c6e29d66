/* See piece_automaton.h. */

#include "piece_automaton.h"
#include "suffix_automaton.h"

/* A symbol is a character and whether it is inside of a word, which its neighbours decide. */
enum { MOST_SPELLED = 12, LINEAR = 8 };
typedef struct { uint8_t length, bytes[MOST_SPELLED]; } Spelled;
typedef struct { Spelled spelled; uint32_t code; int32_t target; } Way; /* of a state of the suffixes, in bytes */

typedef struct {
    Pieces *pieces;
    const SuffixAutomaton *suffixes;
    Array ways;
    int ascii;
} Spelling;

/* --- JSON ------------------------------------------------------------------------------------------------ */

static void spell_unit(Spelled *s, uint32_t unit) {
    static const char digits[] = "0123456789abcdef";
    s->bytes[s->length++] = '\\';
    s->bytes[s->length++] = 'u';
    for (int shift = 12; shift >= 0; shift -= 4) s->bytes[s->length++] = digits[unit >> shift & 15];
}

static void spell_escape(Spelled *s, uint32_t code) {
    if (code > 0xFFFF) {
        spell_unit(s, 0xD800 + ((code - 0x10000) >> 10));
        spell_unit(s, 0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
        spell_unit(s, code);
    }
}

static void spell_utf8(Spelled *s, uint32_t code) {
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t heads[] = {0, 0xC0, 0xE0, 0xF0};
    s->bytes[s->length++] = heads[more] | code >> 6 * more;
    for (int k = more - 1; k >= 0; k--) s->bytes[s->length++] = 0x80 | (code >> 6 * k & 0x3F);
}

/* The one way to write a character: that of Python's json.dumps. */
static Spelled spell(uint32_t code, int ascii) {
    static const char escaped[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    Spelled s = {0, {0}};
    if (code >= ' ' && code <= '~' && code != '"' && code != '\\') return s.length = 1, s.bytes[0] = (uint8_t)code, s;
    const char *found = code && code < 0x80 ? strchr(escaped, (int)code) : NULL;
    if (found) {
        s.bytes[s.length++] = '\\';
        s.bytes[s.length++] = names[found - escaped];
    } else if (code < 0x20 || (ascii && code > 0x7E)) {
        spell_escape(&s, code);
    } else {
        spell_utf8(&s, code);
    }
    return s;
}

/* --- states over bytes ----------------------------------------------------------------------------------- */

#define WAY(i) AT(w->ways, Way, i)
#define DISTANCE(i) AT(w->pieces->distances, int32_t, i)
enum { NO_END = INT32_MAX }; /* the distance of a state from which no piece ends */

static int is_after(const Way *a, const Way *b) {
    return memcmp(a->spelled.bytes, b->spelled.bytes, MOST_SPELLED) > 0;
}

static void sort_ways(Way *ways, int32_t count) {
    if (count < 2) return;
    for (int32_t gap = count / 2; gap > 0; gap /= 2) /* Shell's sort: few states have many ways */
        for (int32_t i = gap; i < count; i++) {
            const Way moved = ways[i];
            int32_t at = i;
            for (; at >= gap && is_after(&ways[at - gap], &moved); at -= gap) ways[at] = ways[at - gap];
            ways[at] = moved;
        }
}

static int32_t add_piece_state(Spelling *w) {
    const PieceState none = {0, 0};
    const int32_t far = NO_END;
    if (append(&w->pieces->states, &none, 1, sizeof none)) return NO_MEMORY;
    if (append(&w->pieces->distances, &far, 1, sizeof far)) return NO_MEMORY;
    return w->pieces->states.size - 1;
}

/* Room for the edges of a state. */
static int32_t reserve_piece_edges(Spelling *w, int32_t count) {
    Pieces *p = w->pieces;
    if (reserve(&p->bytes, count, 1) || reserve(&p->targets, count, sizeof(int32_t))) return NO_MEMORY;
    p->bytes.size += count;
    p->targets.size += count;
    return p->targets.size - count;
}

/* The end of the ways from `first` on that agree in one more byte. */
static int32_t group_end(const Spelling *w, int32_t first, int32_t last, int depth) {
    const uint8_t byte = WAY(first).spelled.bytes[depth];
    while (first < last && WAY(first).spelled.bytes[depth] == byte) first++;
    return first;
}

/* Write the edges of a state whose ways are from `first` to `last`, in order, and agree in `depth` bytes. */
static int write_edges(Spelling *w, int32_t state, int32_t first, int32_t last, int depth) {
    int32_t count = 0;
    for (int32_t i = first; i < last; i = group_end(w, i, last, depth)) count++;
    int32_t edge = reserve_piece_edges(w, count);
    if (edge < 0) return NO_MEMORY;
    PIECE_STATE(w->pieces, state) = (PieceState){edge, count};
    for (int32_t i = first, end; i < last; i = end, edge++) {
        end = group_end(w, i, last, depth);
        int32_t target = WAY(i).target;
        if (WAY(i).spelled.length > depth + 1) {
            if ((target = add_piece_state(w)) < 0 || write_edges(w, target, i, end, depth + 1)) return NO_MEMORY;
        }
        AT(w->pieces->bytes, uint8_t, edge) = WAY(i).spelled.bytes[depth];
        AT(w->pieces->targets, int32_t, edge) = target;
        if (DISTANCE(target) + 1 < DISTANCE(state)) DISTANCE(state) = DISTANCE(target) + 1;
    }
    return 0;
}

static int add_ways(Spelling *w, int32_t state) {
    const SuffixAutomaton *s = w->suffixes;
    for (int32_t i = s->states[state].edges; i >= 0; i = s->edges[i].next) {
        const SuffixEdge e = s->edges[i];
        if (DISTANCE(e.target) == NO_END) continue;
        const Way way = {spell(e.symbol >> 1, w->ascii), e.symbol, e.target};
        if (append(&w->ways, &way, 1, sizeof way)) return NO_MEMORY;
    }
    return 0;
}

/* A state that goes on as either of two: after a character that may be inside of a word. The next character decides,
 * so that no two ways are the same. */
static int32_t either(Spelling *w, int32_t left, int32_t right) {
    const int32_t base = w->ways.size, made = add_piece_state(w);
    if (made < 0 || add_ways(w, left) || add_ways(w, right)) return NO_MEMORY;
    sort_ways(&WAY(base), w->ways.size - base);
    if (!DISTANCE(left) || !DISTANCE(right)) DISTANCE(made) = 0;
    const int code = write_edges(w, made, base, w->ways.size, 0);
    w->ways.size = base;
    return code ? code : made;
}

/* Make one of the ways that are spelled alike; they are in order. */
static int unite_ways(Spelling *w) {
    int32_t kept = 0;
    for (int32_t i = 0; i < w->ways.size; i++) {
        Way way = WAY(i);
        if (i + 1 < w->ways.size && (WAY(i).code ^ 1) == WAY(i + 1).code) {
            if ((way.target = either(w, WAY(i).target, WAY(i + 1).target)) < 0) return NO_MEMORY;
            i++;
        }
        WAY(kept++) = way;
    }
    w->ways.size = kept;
    return 0;
}

static int write_state(Spelling *w, int32_t state) {
    w->ways.size = 0;
    if (w->suffixes->accepting[state]) DISTANCE(state) = 0;
    if (add_ways(w, state)) return NO_MEMORY;
    if (!w->ways.size) return 0;
    sort_ways(w->ways.data, w->ways.size);
    return unite_ways(w) ? NO_MEMORY : write_edges(w, state, 0, w->ways.size, 0);
}

/* Longer pieces first: edges lead to them. */
static int write_states(Spelling *w, const int32_t *order) {
    for (int32_t i = 0; i < w->suffixes->state_count; i++)
        if (add_piece_state(w) < 0) return NO_MEMORY;
    for (int32_t i = w->suffixes->state_count - 1; i >= 0; i--)
        if (write_state(w, order[i])) return NO_MEMORY;
    return 0;
}

INTERNAL int build_pieces(Pieces *p, const uint32_t *symbols, int32_t count, const uint8_t *starts, const uint8_t *ends, int ascii) {
    SuffixAutomaton s;
    Spelling w = {p, &s, {NULL, 0, 0}, ascii};
    int code = build_suffixes(&s, symbols, count, starts, ends);
    if (!code) code = write_states(&w, s.index.slots);
    free_suffixes(&s);
    free(w.ways.data);
    return code;
}

INTERNAL void free_pieces(Pieces *p) {
    free(p->states.data);
    free(p->bytes.data);
    free(p->targets.data);
    free(p->distances.data);
}

INTERNAL int64_t pieces_memory(const Pieces *p) {
    return p->states.capacity * (int64_t)sizeof(PieceState) + p->bytes.capacity + 4LL * (p->targets.capacity + p->distances.capacity);
}

/* --- reading --------------------------------------------------------------------------------------------- */

/* The state after one more byte, or DEAD. */
INTERNAL int32_t piece_step(const Pieces *p, int32_t state, int byte) {
    const PieceState s = PIECE_STATE(p, state);
    const uint8_t *bytes = &AT(p->bytes, uint8_t, s.first);
    int32_t low = 0, high = s.count;
    while (high - low > LINEAR) {
        const int32_t middle = (low + high) / 2;
        if (bytes[middle] <= byte) low = middle;
        else high = middle;
    }
    for (; low < high; low++)
        if (bytes[low] == byte) return AT(p->targets, int32_t, s.first + low);
    return DEAD;
}

INTERNAL void add_piece_bytes(const Pieces *p, int32_t state, Class *live) {
    const PieceState s = PIECE_STATE(p, state);
    for (int32_t i = 0; i < s.count; i++) {
        const uint8_t byte = AT(p->bytes, uint8_t, s.first + i);
        live->word[byte >> 5] |= 1u << (byte & 31);
    }
}

/* Write the bytes of a shortest way to the end of a piece; how many there are. `out`: NULL, or room for them. */
INTERNAL int32_t piece_end(const Pieces *p, int32_t state, uint8_t *out) {
    const int32_t most = AT(p->distances, int32_t, state);
    for (int32_t k = 0; out && k < most; k++) {
        const PieceState s = PIECE_STATE(p, state);
        int32_t i = s.first;
        while (AT(p->distances, int32_t, AT(p->targets, int32_t, i)) != most - k - 1) i++;
        out[k] = AT(p->bytes, uint8_t, i);
        state = AT(p->targets, int32_t, i);
    }
    return most;
}
