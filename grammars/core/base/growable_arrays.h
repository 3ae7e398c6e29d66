/* Growing arrays, and how the tables are reached. */
#ifndef SGL_CORE_BASE_GROWABLE_ARRAYS_H
#define SGL_CORE_BASE_GROWABLE_ARRAYS_H

#include "grammar_core_common.h"
#include "grammar_core_types.h"

#define AT(array, type, i) (((type *)(array).data)[i])
#define NODE(i) AT(c->nodes, Node, i)
#define STATE(i) AT(c->states, State, i)
#define FRAME(i) AT(c->frames, Frame, i)
#define NOTE(i) AT(c->frame_notes, FrameNote, i)
#define LOCAL(i) AT(c->locals, Local, i)
#define OPENED(frame) AT(c->opened, Opened, -1 - (frame))

INTERNAL int grow_array(Array *a, int32_t more, size_t item);

static inline int reserve(Array *a, int32_t more, size_t item) {
    return a->size + more <= a->capacity ? 0 : grow_array(a, more, item);
}

static inline int append(Array *a, const void *items, int32_t count, size_t item) {
    if (reserve(a, count, item)) return NO_MEMORY;
    if (count) memcpy((char *)a->data + a->size * item, items, count * item);
    a->size += count;
    return 0;
}

#endif
