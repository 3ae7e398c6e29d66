/* Growing arrays, and how the tables are reached. */

#define AT(array, type, i) (((type *)(array).data)[i])
#define NODE(i) AT(c->nodes, Node, i)
#define STATE(i) AT(c->states, State, i)
#define FRAME(i) AT(c->frames, Frame, i)
#define NOTE(i) AT(c->frame_notes, FrameNote, i)
#define LOCAL(i) AT(c->locals, Local, i)
#define OPENED(frame) AT(c->opened, Opened, -1 - (frame))

static int grow_array(Array *a, int32_t more, size_t item) {
    int32_t room = a->room ? a->room : 64;
    while (room < a->size + more) room *= 2;
    void *data = realloc(a->data, room * item);
    if (!data) return NO_MEMORY;
    a->data = data;
    a->room = room;
    return 0;
}

static inline int reserve(Array *a, int32_t more, size_t item) {
    return a->size + more <= a->room ? 0 : grow_array(a, more, item);
}

static inline int append(Array *a, const void *items, int32_t count, size_t item) {
    if (reserve(a, count, item)) return NO_MEMORY;
    if (count) memcpy((char *)a->data + a->size * item, items, count * item);
    a->size += count;
    return 0;
}
