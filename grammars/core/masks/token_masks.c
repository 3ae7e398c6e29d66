/* Masks: of local rows and their callers, of a row that differs in little, or by a walk of the whole trie. */

#include "../base/grammar_core_common.h"
#include "../automaton/state_closure.h"
#include "../automaton/nfa_thread_sets.h"
#include "../base/growable_arrays.h"
#include "../base/grammar_core_types.h"
#include "../base/work_budget.h"
#include "canonical_states.h"
#include "copied_masks.h"
#include "character_family_masks.h"
#include "local_state_masks.h"
#include "token_trie_walk.h"

static int fill_mask(Core *c, int32_t state, uint32_t *out);

/* The local row, and what the caller goes on with where the text returns; at the bottom the text only ends. */
static int apply_local(Core *c, const Local *l, int32_t bottom, uint32_t *out) {
    const Trie *t = &family(c, l->family)->exits;
    memcpy(out, l->row, c->vocabulary.words * sizeof *out);
    int32_t caller = bottom && l->count ? popped(c, bottom) : UNKNOWN;
    if (caller == DEAD || (caller < 0 && caller != UNKNOWN)) return caller == DEAD ? 0 : caller;
    for (int32_t k = 0; k < l->count; k++) {
        int32_t node = l->ends[k];
        set_ids(t, node, node + 1, out);
        if (caller == UNKNOWN) continue;
        c->path[t->node[node].depth] = caller;
        int code = walk(c, t, NULL, node + 1, t->node[node].skip, out, NULL);
        if (code) return code;
    }
    return 0;
}

/* Fill the row if the state has a local mask, over the common frame or one further down: 0, UNKNOWN or a code. */
static int mask_by_local(Core *c, int32_t state, uint32_t *out) {
    int32_t bottom = common_frame(c, state);
    for (int tries = 0; tries < 4; tries++, bottom = NOTE(bottom).under) {
        int32_t base = relative(c, state, &bottom), found = base < 0 ? base : local(c, base, bottom);
        if (found < DEAD) return found;
        if (found >= 0) {
            const Local l = LOCAL(found);
            return apply_local(c, &l, bottom, out);
        }
        if (!bottom) break;
    }
    return UNKNOWN;
}

/* The state that most printable bytes lead to, if it agrees with this one on most of them; DEAD if there is none. */
static int32_t mainstream(Core *c, int32_t state) {
    int32_t found = DEAD, votes = 0, agreed = 0, live = 0;
    for (int byte = ' '; byte <= '~'; byte++) {
        int32_t target = core_step(c, state, byte);
        if (target < DEAD) return target;
        if (target != found && target != DEAD && votes-- == 0) found = target, votes = 1;
        else if (target == found && found != DEAD) votes++;
    }
    for (int byte = ' '; byte <= '~' && found >= 0; byte++) {
        int32_t target = core_step(c, found, byte);
        if (target < DEAD) return target;
        live += target != DEAD;
        agreed += target == found && STATE(state).row[byte] == found;
    }
    return agreed >= 16 && agreed * 4 >= live * 3 ? found : DEAD;
}

static int mask_by_walk(Core *c, int32_t state, uint32_t *out) {
    memset(out, 0, c->vocabulary.words * sizeof *out);
    return walk_all(c, &c->vocabulary.all, state, out);
}

/* All plain text, and a walk of the tokens that are not. */
static int mask_by_promise(Core *c, int32_t state, uint32_t *out) {
    const Family *plain = family(c, PLAIN);
    size_t words = c->vocabulary.words;
    memcpy(out, plain->rows + plain->longest * words, words * sizeof *out);
    return walk_all(c, &c->vocabulary.rest, state, out);
}

/* What the threads outside of pieces allow, and what the pieces do. */
static int mask_by_pieces(Core *c, int32_t state, uint32_t *out) {
    const int32_t rest = state_outside(c, state);
    if (rest < DEAD) return rest;
    if (rest == DEAD) memset(out, 0, c->vocabulary.words * sizeof *out);
    const int code = rest == DEAD ? 0 : fill_mask(c, rest, out);
    return code ? code : walk_pieces(c, &c->vocabulary.all, state, 0, c->vocabulary.all.size, out);
}

static int fill_mask(Core *c, int32_t state, uint32_t *out) {
    if (STATE(state).copied) return mask_by_pieces(c, state, out);
    if (!is_dense(c, state)) return mask_by_walk(c, state, out);
    int code = mask_by_local(c, state, out);
    if (code != UNKNOWN) return code;
    if (core_takes_plain(c, state)) return mask_by_promise(c, state, out);
    int32_t other = mainstream(c, state);
    if (other < DEAD) return other;
    code = other == DEAD ? UNKNOWN : mask_by_local(c, other, out);
    if (code) return code == UNKNOWN ? mask_by_walk(c, state, out) : code;
    return correct(c, state, other, out);
}

enum { TOKEN = 0xF8, NUMBER_BYTES = 3 }; /* see `marks.py` */

/* Set the bits of the tokens whose numbers, of which `number` are the first bytes, a grammar goes on with. */
static int name_below(Core *c, int32_t state, int32_t number, int depth, uint32_t *out) {
    const Class live = STATE(state).live;
    for (int w = 0; w < CLASS_WORDS; w++)
        for (uint32_t bits = live.word[w]; bits; bits &= bits - 1) {
            const int byte = w * 32 + __builtin_ctz(bits);
            const int32_t token = number << 8 | byte;
            if (spend(c, NODE_WORK)) return PAUSED;
            int32_t target = step_known(c, state, byte);
            if (target == DEAD) continue;
            if (target < DEAD) return target;
            if (depth < NUMBER_BYTES) {
                int code = name_below(c, target, token, depth + 1, out);
                if (code) return code;
            } else if (token < c->vocabulary.words * 32) {
                out[token >> 5] |= 1u << (token & 31);
            }
        }
    return 0;
}

/* Add the tokens of which the grammar itself speaks here. */
static int name_tokens(Core *c, int32_t state, uint32_t *out) {
    if (!has(&STATE(state).live, TOKEN)) return 0;
    int32_t named = core_step(c, state, TOKEN);
    return named < 0 ? named : name_below(c, named, 0, 1, out);
}

/* A number from 0 that equal rows share. */
API int64_t core_digest(const uint32_t *row, int32_t words) {
    uint64_t h[4] = {1, 2, 3, 4}, x[4];
    int32_t w = 0;
    for (; w + 8 <= words; w += 8) {
        memcpy(x, row + w, sizeof x);
        for (int k = 0; k < 4; k++) h[k] = (h[k] ^ x[k] ^ h[k] >> 32) * 0x9E3779B97F4A7C15ull;
    }
    for (; w < words; w++) h[w & 3] = (h[w & 3] ^ row[w]) * 0x9E3779B97F4A7C15ull;
    uint64_t all = h[0] ^ h[1] >> 7 ^ h[2] >> 15 ^ h[3] >> 23;
    return (int64_t)((all ^ all >> 29) >> 2);
}

/* Fill a row with the bits of the tokens that keep the text viable, and of the end where it may end; its digest, or a
 * code. */
API int64_t core_mask(Core *c, int32_t state, uint32_t *out) {
    int32_t alike = core_canonical(c, state);
    int32_t code = alike < 0 ? alike : fill_mask(c, alike, out);
    if (!code) code = name_tokens(c, alike, out);
    if (code) return code;
    for (int32_t w = 0; w < c->vocabulary.words && STATE(alike).final; w++) out[w] |= c->vocabulary.eos[w];
    return core_digest(out, c->vocabulary.words);
}

/* The same for many states, each with its core; a core may come more than once. They share the work that is allowed,
 * of which `work` keeps what is left. */
API void core_masks(Core *const *cores, const int32_t *states, uint32_t *const *outs, int64_t *digests, int32_t n,
                    int64_t *work, int32_t hasty) {
    for (int32_t i = 0; i < n; i++) {
        core_allow(cores[i], *work, hasty);
        digests[i] = *work < 0 ? PAUSED : core_mask(cores[i], states[i], outs[i]);
        *work = cores[i]->spare;
        core_allow(cores[i], UNLIMITED, 0);
    }
}
