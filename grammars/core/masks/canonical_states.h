/* States that the bytes ahead cannot tell apart are one: counts far from their bounds lose their value. */
#ifndef SGL_CORE_MASKS_CANONICAL_STATES_H
#define SGL_CORE_MASKS_CANONICAL_STATES_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

API int32_t core_canonical(Core *c, int32_t state);

#endif
