/* See growable_arrays.h. */

#include "growable_arrays.h"
#include "grammar_core_types.h"

INTERNAL int grow_array(Array *a, int32_t more, size_t item) {
    int32_t capacity = a->capacity ? a->capacity : 64;
    while (capacity < a->size + more) capacity *= 2;
    void *data = realloc(a->data, capacity * item);
    if (!data) return NO_MEMORY;
    a->data = data;
    a->capacity = capacity;
    return 0;
}
