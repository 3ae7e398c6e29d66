/* See language_product.h. */

#include "language_product.h"
#include "../base/python_call_arguments.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../expressions/gil_yield.h"
#include "interned_terms.h"
#include "../lowering/rule_lowering.h"
#include "../lowering/network_tables.h"

typedef struct { int32_t state, count; } Place; /* a state and the characters before it, as far as they matter */

/* More words at the end of an array; NULL without memory. */
INTERNAL int32_t *more_words(Array *a, int32_t count) {
    if (reserve(a, count, sizeof(int32_t))) return no_memory(), NULL;
    a->size += count;
    return (int32_t *)a->data + a->size - count;
}

static int meet_masks(int32_t *both, const int32_t *left, const int32_t *right, int32_t words) {
    int32_t any = 0;
    for (int32_t i = 0; i < words; i++) any |= both[i] = left[i] & right[i];
    return any != 0;
}

/* Take classes out of a set; whether any are left. */
static int take_mask(int32_t *from, const int32_t *taken, int32_t words) {
    int32_t any = 0;
    for (int32_t i = 0; i < words; i++) any |= from[i] &= ~taken[i];
    return any != 0;
}

static int32_t intern_words(Memo *m, const int32_t *words, int32_t count) {
    int32_t *key = new_key(m, count);
    if (!key) return no_memory();
    if (count) memcpy(key, words, count * sizeof *key);
    return intern_key(m, count);
}

/* An entry of a memo, and a row of leads for it that is not made yet. */
INTERNAL int32_t intern_with_row(Memo *m, Array *rows, const int32_t *words, int32_t count) {
    const Row unknown = {0, -1};
    int32_t found = intern_words(m, words, count);
    if (found == rows->size && append(rows, &unknown, 1, sizeof unknown)) return no_memory();
    return found;
}

INTERNAL int32_t part_of(Joint *p, const int32_t *terms, int32_t count) {
    int32_t part = intern_with_row(&p->parts, &p->part_rows, terms, count), nullable = 0;
    if (part < 0 || VALUE(p->parts, part) != UNKNOWN) return part;
    for (int32_t i = 0; i < count; i++) nullable |= NULLABLE(&p->terms, terms[i]);
    VALUE(p->parts, part) = nullable;
    return part;
}

static int add_lead(Joint *p, Array *leads, const int32_t *mask, int32_t target) {
    const Lead lead = {intern_words(&p->masks, mask, p->words), target};
    if (lead.mask < 0 || target < 0) return FAILED;
    return append(leads, &lead, 1, sizeof lead) ? no_memory() : 0;
}

/* Add a set of classes to what `found` has of a number: rows of the number and its classes are in `cut`. */
static int gather(Joint *p, int32_t number, const int32_t *mask) {
    int32_t at = intern_words(&p->found, &number, 1), *row;
    if (at < 0) return FAILED;
    if (at * (p->words + 1) == p->cut.size) {
        if (!(row = more_words(&p->cut, p->words + 1))) return FAILED;
        memset(row, 0, (p->words + 1) * sizeof *row);
        row[0] = number;
    }
    row = &AT(p->cut, int32_t, at * (p->words + 1)) + 1;
    for (int32_t i = 0; i < p->words; i++) row[i] |= mask[i];
    return 0;
}

static void begin_gathering(Joint *p) {
    clear_memo(&p->found);
    p->cut.size = 0;
}

/* The classes by which the terms of a part move, by what must follow. */
static int gather_part(Joint *p, int32_t part) {
    Row row;
    begin_gathering(p);
    for (int32_t i = 0; i < AT(p->parts.entries, Entry, part).length; i++) {
        const Entry *entry = &AT(p->parts.entries, Entry, part);
        if (linear_of(&p->terms, AT(p->parts.keys, int32_t, entry->offset + i), &row)) return FAILED;
        for (int32_t k = 0; k < row.count; k++) {
            Move move = AT(p->terms.moves, Move, row.offset + k);
            if (gather(p, move.after, &AT(p->set_masks, int32_t, move.chars * p->words))) return FAILED;
        }
    }
    return 0;
}

/* A piece of some classes with the `count` targets that begin at `from` of the lists, and with one more. */
static int add_piece(Joint *p, const int32_t *mask, int32_t from, int32_t count, int32_t target) {
    int32_t offset = target < 0 ? from : p->lists.size, *piece = more_words(&p->pieces, p->words + 2), *list;
    if (!piece) return FAILED;
    memcpy(piece, mask, p->words * sizeof *piece);
    piece[p->words] = offset, piece[p->words + 1] = count + (target >= 0);
    if (target < 0) return 0;
    if (!(list = more_words(&p->lists, count + 1))) return FAILED;
    if (count) memcpy(list, (int32_t *)p->lists.data + from, count * sizeof *list);
    list[count] = target;
    return 0;
}

/* Cut all pieces by one more set of classes with a target; the new ones take their place. */
static int cut_pieces(Joint *p, int32_t *mask, int32_t target) {
    int32_t end = p->pieces.size, size = p->words + 2, left = 1;
    for (int32_t at = 0; at < end; at += size) {
        int32_t *piece = (int32_t *)p->pieces.data + at, from = piece[p->words], count = piece[p->words + 1], rest = 1;
        if (meet_masks(p->both, piece, mask, p->words)) {
            rest = take_mask(piece, p->both, p->words);
            left = take_mask(mask, p->both, p->words);
            if (add_piece(p, p->both, from, count, target)) return FAILED;
        }
        if (reserve(&p->pieces, size, sizeof(int32_t))) return no_memory();
        if (rest && add_piece(p, (int32_t *)p->pieces.data + at, from, count, -1)) return FAILED;
    }
    if (left && add_piece(p, mask, 0, 0, target)) return FAILED;
    int32_t *words = p->pieces.data;
    p->pieces.size -= end;
    if (end) memmove(words, words + end, p->pieces.size * sizeof *words);
    p->work += p->pieces.size / size;
    return 0;
}

/* One component's moves over disjoint sets of classes. */
static int make_part_leads(Joint *p, int32_t part) {
    Row row = {p->part_leads.size, 0};
    if (gather_part(p, part)) return FAILED;
    p->pieces.size = p->lists.size = 0;
    for (int32_t at = 0; at < p->cut.size; at += p->words + 1)
        if (cut_pieces(p, &AT(p->cut, int32_t, at) + 1, AT(p->cut, int32_t, at))) return FAILED;
    for (int32_t at = 0; at < p->pieces.size; at += p->words + 2, row.count++) {
        int32_t *piece = &AT(p->pieces, int32_t, at), *list = (int32_t *)p->lists.data + piece[p->words];
        qsort(list, piece[p->words + 1], sizeof *list, by_number);
        if (add_lead(p, &p->part_leads, piece, part_of(p, list, piece[p->words + 1]))) return FAILED;
    }
    AT(p->part_rows, Row, part) = row;
    return 0;
}

static int state_piece(Joint *p, const int32_t *mask, const int32_t *parts, int32_t known, int32_t part) {
    int32_t *piece = more_words(&p->pieces, p->words + p->components);
    if (!piece) return FAILED;
    memcpy(piece, mask, p->words * sizeof *piece);
    memcpy(piece + p->words, parts, known * sizeof *piece);
    piece[p->words + known] = part;
    return 0;
}

/* Cut one piece by the moves of component `at`; where it cannot move it is dead, which only an excluded one may be. */
static int refine_piece(Joint *p, int32_t *piece, int32_t at, Row row) {
    int left = 1;
    for (int32_t i = 0; i < row.count && left; i++) {
        Lead lead = AT(p->part_leads, Lead, row.offset + i);
        if (!meet_masks(p->both, piece, MASK(p, lead.mask), p->words)) continue;
        if (state_piece(p, p->both, piece + p->words, at, lead.target)) return FAILED;
        left = take_mask(piece, p->both, p->words);
    }
    if (!left || at < p->included) return 0;
    int32_t dead = part_of(p, NULL, 0);
    return dead < 0 ? FAILED : state_piece(p, piece, piece + p->words, at, dead);
}

/* Cut all pieces, which change places with their copy, by the moves of component `at`. */
static int refine_pieces(Joint *p, int32_t at, Row row) {
    const Array copy = p->cut;
    int32_t size = p->words + p->components;
    p->cut = p->pieces, p->pieces = copy, p->pieces.size = 0;
    for (int32_t i = 0; i < p->cut.size; i += size) {
        if (refine_piece(p, &AT(p->cut, int32_t, i), at, row)) return FAILED;
        yield_gil();
    }
    p->work += p->pieces.size / size;
    return 0;
}

static int32_t state_part(const Joint *p, int32_t state, int32_t at) {
    return AT(p->states.keys, int32_t, state * p->components + at);
}

static int cut_by_components(Joint *p, int32_t state) {
    for (int32_t i = 0; i < p->components; i++) {
        int32_t part = state_part(p, state, i);
        if (AT(p->part_rows, Row, part).count < 0 && make_part_leads(p, part)) return FAILED;
    }
    p->pieces.size = 0;
    int32_t *all = more_words(&p->pieces, p->words + p->components);
    if (!all) return FAILED;
    memset(all, 0, (p->words + p->components) * sizeof *all);
    memcpy(all, p->everything.data, p->words * sizeof *all);
    for (int32_t i = 0; i < p->components; i++)
        if (refine_pieces(p, i, AT(p->part_rows, Row, state_part(p, state, i)))) return FAILED;
    return 0;
}

/* Where the characters lead, those with the same target together; dead ends are left out. */
static int make_state_leads(Joint *p, int32_t state) {
    Row row = {p->state_leads.size, 0};
    if (cut_by_components(p, state)) return FAILED;
    begin_gathering(p);
    for (int32_t at = 0; at < p->pieces.size; at += p->words + p->components) {
        const int32_t *piece = &AT(p->pieces, int32_t, at);
        int32_t target = intern_with_row(&p->states, &p->state_rows, piece + p->words, p->components);
        if (target < 0 || gather(p, target, piece)) return FAILED;
    }
    for (int32_t at = 0; at < p->cut.size; at += p->words + 1, row.count++) {
        const int32_t *found = &AT(p->cut, int32_t, at);
        if (add_lead(p, &p->state_leads, found + 1, found[0])) return FAILED;
    }
    AT(p->state_rows, Row, state) = row;
    return 0;
}

/* The number of a place, which is put in order where it is new. */
static int32_t place_of(Joint *p, int32_t state, int32_t count) {
    const Place place = {state, count};
    int32_t found = intern_words(&p->places, &place.state, 2);
    if (found == p->order.size && append(&p->order, &place, 1, sizeof place)) return no_memory();
    return found;
}

static int add_edges(Joint *p, Place from) {
    int32_t count = from.count + 1;
    if (p->most < 0 && count > p->least) count = p->least;
    if (AT(p->state_rows, Row, from.state).count < 0 && make_state_leads(p, from.state)) return FAILED;
    Row row = AT(p->state_rows, Row, from.state);
    for (int32_t i = 0; i < row.count; i++) {
        yield_gil();
        Lead lead = AT(p->state_leads, Lead, row.offset + i);
        lead.target = place_of(p, lead.target, count);
        if (lead.target < 0 || append(&p->edges, &lead, 1, sizeof lead)) return FAILED;
    }
    return 0;
}

/* Follow all places from the first one; 0, TOO_MUCH or FAILED. */
INTERNAL int explore(Joint *p, int32_t start) {
    if (start < 0 || place_of(p, start, 0) < 0) return FAILED;
    for (int32_t i = 0; i < p->order.size; i++) {
        Row row = {p->edges.size, 0};
        Place place = AT(p->order, Place, i);
        if (place.count != p->most && add_edges(p, place)) return FAILED;
        row.count = p->edges.size - row.offset;
        if (append(&p->edge_rows, &row, 1, sizeof row)) return no_memory();
        if (p->order.size > p->most_states || p->work > p->most_work) return TOO_MUCH;
    }
    return 0;
}

INTERNAL int accepts(const Joint *p, int32_t at) {
    Place place = AT(p->order, Place, at);
    for (int32_t i = 0; i < p->components; i++)
        if (VALUE(p->parts, state_part(p, place.state, i)) != (i < p->included)) return 0;
    return place.count >= p->least;
}

INTERNAL void end_joint(Joint *p) {
    Array *arrays[] = {&p->part_rows, &p->part_leads, &p->state_rows, &p->state_leads, &p->edge_rows, &p->edges, &p->order,
                       &p->pieces, &p->cut, &p->lists, &p->set_masks, &p->everything};
    Memo *memos[] = {&p->parts, &p->states, &p->masks, &p->places, &p->found};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]->data);
    for (size_t i = 0; i < sizeof memos / sizeof *memos; i++) free_memo(memos[i]);
    free(p->both);
    end_terms(&p->terms);
}
