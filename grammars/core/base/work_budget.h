/* How much a core may do before it stops with PAUSED; what it found by then stays found, so that it goes on from there.
 *
 * A step of work takes some nanoseconds: a node of a trie that is walked; a thread of a closure is several. A hasty
 * core stops at once, in the middle of a closure; any other one ends the closure that it is in, so that it gets on. */
#ifndef SGL_CORE_BASE_WORK_BUDGET_H
#define SGL_CORE_BASE_WORK_BUDGET_H

#include "grammar_core_common.h"
#include "grammar_core_types.h"

enum { NODE_WORK = 1, BYTE_WORK = 4, VISIT_WORK = 8 };
#define UNLIMITED INT64_MAX

INTERNAL int spend(Core *c, int64_t work);
API void core_allow(Core *c, int64_t work, int32_t hasty);

#endif
