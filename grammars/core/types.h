/* What a core is made of: the network's tables, interned frames and states, and scratch. */

enum { BYTE, SPLIT, CALL, ENTER, LOOP, NEXT, RETURN };
enum { DEAD = -1, NEED = -2, FULL = -3, NO_MEMORY = -4, UNKNOWN = -5 };
enum { MAX_THREADS = 20000, CLASS_WORDS = 8 };

typedef struct { int32_t kind, a, b, c, loop; } Node;
typedef struct { int32_t node, count, frame; } Thread; /* a frame is the thread that goes on when it is popped */
typedef struct { uint32_t word[CLASS_WORDS]; } Class;
typedef struct { int32_t offset, length, canonical; uint8_t final; Class live; int32_t *row; } State;
typedef struct { void *data; int32_t size, room; } Array;
typedef struct { int32_t *slots; uint32_t room; } Index;

typedef struct {
    int32_t size;
    const uint8_t *byte;
    const uint16_t *depth;
    const int32_t *skip, *first, *ids;
} Trie;

typedef struct {
    Trie all, rest;
    const uint32_t *slices;
    int32_t longest, words, reach;
} Vocabulary;

typedef struct {
    Array nodes, edges, classes, entries;
    Array frames, canonical_frames, threads, states;
    Index frame_index, state_index, seen_index;
    Array work, kept, seen;
    int32_t *path, limit, wanted;
    Vocabulary vocabulary;
} Core;

static const Class PLAIN = {{0, 0xFFFFFFFBu, 0xEFFFFFFFu, ~0u, ~0u, ~0u, ~0u, ~0u}};
