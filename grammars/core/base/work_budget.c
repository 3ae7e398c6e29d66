/* See work_budget.h. */

#include "work_budget.h"
#include "grammar_core_types.h"

INTERNAL int spend(Core *c, int64_t work) {
    c->spare -= work;
    return c->spare < 0 && c->hasty ? PAUSED : 0;
}

API void core_allow(Core *c, int64_t work, int32_t hasty) {
    c->spare = work;
    c->hasty = hasty;
}

API int64_t core_spare(Core *c) { return c->spare; }
