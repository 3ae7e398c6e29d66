/* Where the last tokens of a text were before (see speculative/places.py, whose Python is the oracle of this).

   A text is searched from its end for SOUGHT, then fewer of its last tokens; of each number the newest PLACES are returned. */
#ifndef SGL_SAMPLING_SUFFIX_LOOKUP_H
#define SGL_SAMPLING_SUFFIX_LOOKUP_H

#include "../base/cpu_kernels_common.h"

enum { SOUGHT = 3, PLACES = 4, LONGEST = 24, END = -1 };

typedef struct { long length, text, place; } Match;

INTERNAL long find_places(const int32_t *text, long size, const int32_t *others, long other_size, long least, Match *matches);
INTERNAL long named_place(const int32_t *text, long size, const uint32_t *mask, long words, long few);

#endif
