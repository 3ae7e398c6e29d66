/* Frames: interned sets of threads to return to, and their unions. Threads that differ in their frames alone go on alike: they are one, over a frame with all that either went on with.
 * So an ambiguous text has no more threads than the grammar has places, whatever the number of its readings. The bottom
 * stays apart. `closure.py` is the same. */
#ifndef SGL_CORE_AUTOMATON_THREAD_FRAMES_H
#define SGL_CORE_AUTOMATON_THREAD_FRAMES_H

#include "../base/grammar_core_common.h"
#include "../base/grammar_core_types.h"

INTERNAL int32_t make_set(Core *c, Array *home, int32_t count);
INTERNAL int32_t intern_frame(Core *c, int32_t count);

#endif
