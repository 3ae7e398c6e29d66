/* Counts are shifted together where one character cannot tell: all of a loop, if they are more than a character's
 * bytes away from its bounds. States that differ only so take the same families. */
#ifndef SGL_CORE_MASKS_COUNT_SHIFTS_H
#define SGL_CORE_MASKS_COUNT_SHIFTS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int32_t shifted(Core *c, int32_t state);

#endif
