/* States that the bytes ahead cannot tell apart are one: counts far from their bounds lose their value. */
#ifndef SGL_CORE_MASKS_CANONICAL_H
#define SGL_CORE_MASKS_CANONICAL_H

#include "../base/common.h"
#include "../base/types.h"

API int32_t core_canonical(Core *c, int32_t state);

#endif
