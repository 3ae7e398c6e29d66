/* See character_family_masks.h. */

#include "character_family_masks.h"
#include "../automaton/state_closure.h"
#include "../automaton/nfa_thread_sets.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "count_shifts.h"

INTERNAL const Family *family(Core *c, int32_t i) { return &c->vocabulary.families[i]; }

/* Whether any amount of plain text may come here, as the network promises. */
API int32_t core_takes_plain(Core *c, int32_t state) {
    for (int32_t i = 0; i < STATE(state).length; i++)
        if (NODE(AT(c->threads, Thread, STATE(state).offset + i).node).c == 1) return 1;
    return 0;
}

/* Whether a byte of each spelling's first range can come at all. */
INTERNAL int may_begin(Core *c, int32_t state, const Family *f) {
    for (int32_t i = 0; i < f->spelled; i++)
        if (!has(&STATE(state).live, f->spellings[i * SPELLING + 1])) return 0;
    return 1;
}

/* The state after any byte of a range: UNKNOWN where it depends on the byte. */
static int32_t after_range(Core *c, int32_t state, const uint8_t *range) {
    int32_t found = core_step(c, state, range[0]);
    for (int byte = range[0] + 1; byte <= range[1] && found >= DEAD; byte++) {
        int32_t other = core_step(c, state, byte);
        if (other != found) return other < DEAD ? other : UNKNOWN;
    }
    return found;
}

/* The state after any character of a family: UNKNOWN where it depends on the character. */
static int32_t after_any(Core *c, int32_t state, const Family *f) {
    int32_t found = UNKNOWN;
    for (int32_t i = 0; i < f->spelled; i++) {
        const uint8_t *spelling = f->spellings + i * SPELLING;
        int32_t at = state;
        for (int k = 0; k < spelling[0] && at >= 0; k++) at = after_range(c, at, spelling + 1 + 2 * k);
        if (at < DEAD || (i && at != found)) return at < DEAD ? at : UNKNOWN;
        found = at;
    }
    return found;
}

/* The state after any character of a family; whether there is one is asked of the shifted state, once. */
INTERNAL int32_t onward(Core *c, int32_t state, int32_t number) {
    const Family *f = family(c, number);
    int32_t alike = shifted(c, state);
    if (alike < 0) return alike;
    if (STATE(alike).family != number) {
        int32_t found = after_any(c, alike, f);
        if (found < DEAD && found != UNKNOWN) return found;
        STATE(alike).family = number;
        STATE(alike).onward = found;
    }
    int32_t found = STATE(alike).onward;
    return found < 0 || alike == state ? found : core_step(c, state, f->spellings[1]);
}
