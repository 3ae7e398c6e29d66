/* Counts are shifted together where one character cannot tell: all of a loop, if they are more than a character's
 * bytes away from its bounds. States that differ only so take the same families. */
#ifndef SGL_CORE_MASKS_SHIFT_H
#define SGL_CORE_MASKS_SHIFT_H

#include "../base/common.h"
#include "../base/types.h"

INTERNAL int32_t shifted(Core *c, int32_t state);

#endif
