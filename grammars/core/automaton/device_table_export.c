/* What a device keeps: whole rows of targets. */

#include "../base/grammar_core_common.h"
#include "state_closure.h"
#include "../base/grammar_core_types.h"

/* The 256 targets of each of n states, worked out where they are not known; 0, or a code that says where it stopped. */
API int32_t core_rows(Core *c, const int32_t *states, int32_t n, int32_t *out) {
    for (int32_t i = 0; i < n; i++)
        for (int byte = 0; byte < 256; byte++) {
            int32_t target = core_step(c, states[i], byte);
            if (target < DEAD) return target;
            out[i * 256 + byte] = target;
        }
    return 0;
}
