/* Where every character of a family leads to one state. */
#ifndef SGL_CORE_MASKS_CHARACTER_FAMILY_MASKS_H
#define SGL_CORE_MASKS_CHARACTER_FAMILY_MASKS_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

enum { PLAIN = 1 }; /* the family of plain JSON text */

INTERNAL const Family *family(Core *c, int32_t i);
API int32_t core_takes_plain(Core *c, int32_t state);
INTERNAL int may_begin(Core *c, int32_t state, const Family *f);
INTERNAL int32_t onward(Core *c, int32_t state, int32_t number);

#endif
