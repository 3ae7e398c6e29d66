/* The product of languages of characters, determinised: `_Product` of `language.py` function by function, with the same
 * graph. A part is a sorted set of terms, a state has a part of each component, and sets of classes are rows of words. */
#ifndef SGL_CORE_LANGUAGES_LANGUAGE_PRODUCT_H
#define SGL_CORE_LANGUAGES_LANGUAGE_PRODUCT_H

#include "../base/grammar_core_common.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "interned_terms.h"
#include "../lowering/network_tables.h"

enum { TOO_MUCH = -7 };
typedef struct { int32_t mask, target; } Lead;

typedef struct {
    Terms terms;
    Memo parts, states, masks, places; /* the value of a part says whether it matches the empty text */
    Memo found;                        /* what was found already, in the order in which it was found */
    Array part_rows, part_leads, state_rows, state_leads, edge_rows, edges;
    Array order;                       /* Place */
    Array pieces, cut, lists;          /* sets of classes that are cut over and over, and lists of what goes with them */
    Array set_masks;                   /* the classes of each set, `words` of them */
    Array everything;
    int32_t *both;                     /* scratch of `words` */
    int32_t words, components, included, least, most, most_states, most_work, work;
} Joint;

#define MASK(p, i) (&AT((p)->masks.keys, int32_t, (i) * (p)->words))

INTERNAL int32_t *more_words(Array *a, int32_t count);
INTERNAL int32_t intern_with_row(Memo *m, Array *rows, const int32_t *words, int32_t count);
INTERNAL int32_t part_of(Joint *p, const int32_t *terms, int32_t count);
INTERNAL int explore(Joint *p, int32_t start);
INTERNAL int accepts(const Joint *p, int32_t at);
INTERNAL void end_joint(Joint *p);

#endif
