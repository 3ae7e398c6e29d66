/* Where the last tokens of a text were before: see suffix_lookup.h. */

#include "suffix_lookup.h"

typedef struct { long count[SOUGHT], place[SOUGHT][PLACES]; } Levels; /* places after one, two, three of the last tokens */

static long alike(const int32_t *text, long place, const int32_t *tail, long most) {
    long length = 0;
    most = most < place ? most : place;
    while (length < most && text[place - 1 - length] == tail[-1 - length]) length++;
    return length;
}

/* tail: after the last of the tokens that are sought, of which there are `most`. */
static void search_text(const int32_t *text, long size, const int32_t *tail, long most, Levels *found) {
    const long deepest = most < SOUGHT ? most : SOUGHT;
    const int32_t last = tail[-1];
    memset(found->count, 0, sizeof found->count);
    for (long place = size - 1; place > 0 && found->count[deepest - 1] < PLACES; place--) {
        if (text[place - 1] != last) continue;
        const long depth = alike(text, place, tail, deepest);
        for (long i = 0; i < depth; i++)
            if (found->count[i] < PLACES) found->place[i][found->count[i]++] = place;
    }
}

/* After what is there, in order: longest first, of equals those that were there. */
static long insert_matches(Match *matches, long first, long count, const Levels *levels, long level, long which, const int32_t *text, const int32_t *tail, long most) {
    for (long i = 0; i < levels->count[level]; i++) {
        const long place = levels->place[level][i];
        if (text[place] == END) continue;
        const Match made = {alike(text, place, tail, most), which, place};
        long at = count++;
        for (; at > first && matches[at - 1].length < made.length; at--) matches[at] = matches[at - 1];
        matches[at] = made;
    }
    return count;
}

INTERNAL long find_places(const int32_t *text, long size, const int32_t *others, long other_size, long least, Match *matches) {
    const int32_t *tail = text + size;
    const long most = size < LONGEST ? size : LONGEST;
    Levels own, other = {{0}, {{0}}};
    long count = 0;
    search_text(text, size, tail, most, &own);
    if (others) search_text(others, other_size, tail, most, &other);
    for (long level = SOUGHT - 1; level >= 0; level--) {
        const long first = count;
        if (level < most) count = insert_matches(matches, first, count, &own, level, 0, text, tail, most);
        if (level < most && level + 1 >= least) count = insert_matches(matches, first, count, &other, level, 1, others, tail, most);
    }
    return count;
}

/* Of the first MOST_ITEMS places with a token that a mask allows: the first that follows the token which most different ones
   follow; 0: none does, or the mask allows one token or more than `few`. See speculative/named.py. */

enum { MOST_ITEMS = 512 };

typedef struct { int32_t before, item, place, different; } Item;

static long allowed_items(const int32_t *text, long size, const uint32_t *mask, long words, Item *items) {
    long count = 0;
    for (long place = 1; place < size && count < MOST_ITEMS; place++) {
        const uint32_t token = (uint32_t)text[place];
        const long word = token >> 5;
        if (word < words && mask[word] >> (token & 31) & 1) items[count++] = (Item){text[place - 1], (int32_t)token, (int32_t)place, 0};
    }
    return count;
}

INTERNAL long named_place(const int32_t *text, long size, const uint32_t *mask, long words, long few) {
    long allowed = 0, best = 0;
    for (long i = 0; i < words; i++) allowed += __builtin_popcount(mask[i]);
    if (allowed < 2 || allowed > few) return 0;
    Item items[MOST_ITEMS];
    const long count = allowed_items(text, size, mask, words, items);
    for (long i = 0; i < count; i++) {
        long first = -1, seen = 0;
        for (long j = 0; j < i && !seen; j++) {
            if (items[j].before != items[i].before) continue;
            if (first < 0) first = j;
            seen = items[j].item == items[i].item;
        }
        if (!seen) items[first < 0 ? i : first].different++;
    }
    for (long i = 1; i < count; i++)
        if (items[i].different > items[best].different) best = i;
    return count ? items[best].place : 0;
}
