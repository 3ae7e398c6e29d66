/* What a core is made of: the network's tables, interned frames and states, and scratch. */
#ifndef SGL_CORE_BASE_GRAMMAR_CORE_TYPES_H
#define SGL_CORE_BASE_GRAMMAR_CORE_TYPES_H

#include "grammar_core_common.h"

enum { BYTE, SPLIT, CALL, ENTER, LOOP, NEXT, RETURN, PICK, SEEN, COPY };
enum { DEAD = -1, NEED = -2, FULL = -3, NO_MEMORY = -4, UNKNOWN = -5, CROWDED = -7, PAUSED = -8 };
enum { MANY = -1, FEW = 12, CLASS_WORDS = 8, SPELLING = 9 };
enum { BETWEEN = -1, BELOW = -2 }; /* counts that are far from both bounds, or far below the least */
enum { MAX_THREADS = 20000, MAX_VISITS = 1 << 18, MAX_HELD = 1 << 22, MAX_SEEDS = 1 << 18, MAX_UNITED = 100 }; /* of one closure; in states and registers */
typedef struct { int32_t kind, a, b, c, loop; } Node;
typedef struct { int32_t node, count, frame; } Thread;
typedef struct { int32_t offset, length; uint32_t hash; } Frame; /* of `returns`: what goes on when it is popped */
typedef struct { int32_t under, caller; } FrameNote; /* see masks/local_state_masks.h and masks/token_masks.c */
typedef struct { int32_t first, last, closed, popped; } Opened;  /* a frame of the running closure, and its `callers` */
typedef struct { Thread thread; int32_t next; } Caller;
typedef struct { uint32_t hash; int32_t offset, length, target; } Seeded; /* from some of `seeds`, by their closure */
typedef struct { int32_t left, right, both; } Union; /* of two frames; see automaton/thread_frames.h */
typedef struct { uint32_t closure; int32_t opened; } Entered;    /* by node: the closure that entered it last */
typedef struct { int32_t list, members, offset, words; } Subset; /* its bits begin at `offset` of `used` */
typedef struct { int32_t required, least, most, extra, parts[]; } PartTable;
typedef struct { uint32_t word[CLASS_WORDS]; } Class;

typedef struct {
    int32_t offset, length, canonical, next; /* `next` is after the only byte, where there is but one */
    int32_t shifted, family, onward, local, branch; /* see count_shifts.h, character_family_masks.h, local_state_masks.h and token_trie_walk.h in masks */
    uint32_t hash;
    int16_t only;                            /* the byte, or MANY */
    uint8_t final, copied;                   /* `copied`: some of its threads are in pieces of a text */
    Class live;
    int32_t *row;
} State;

typedef struct { void *data; int32_t size, capacity; } Array;
typedef struct { int32_t *slots; uint32_t capacity; } Index;

/* A trie's node: the first node after its subtree, where its tokens begin in `ids`. One more node ends the trie. */
typedef struct { int32_t skip, first; uint16_t depth; uint8_t byte; } TrieNode;

typedef struct {
    int32_t size;
    const TrieNode *node;
    const int32_t *ids, *roots; /* `roots` are the uppermost nodes by their bytes, -1 where there is none */
} Trie;

typedef struct {
    Trie exits;
    const uint32_t *rows;
    const uint8_t *spellings;
    int32_t longest, most, spelled;
} Family;

typedef struct {
    Trie all, rest;
    const Family *families;
    const uint32_t *eos;
    int32_t family_count, words, reach;
} Vocabulary;

/* What a state allows by itself, and the nodes of a trie where its text may end and its caller goes on; `open` if it
 * may do so after text of the family alone. At the `root`, where there is no caller, those nodes are not asked for. */
typedef struct { uint32_t *row; int32_t *ends, count, family, open, root; } Local;

/* A large subtree from one state: its row, and the nodes where the bottom may be left (-1: not asked for). */
typedef struct { const Trie *trie; int32_t node, next, count, *ends; uint32_t *row; } Branch;

typedef struct {
    Array nodes, edges, classes, entries, pieces; /* `pieces` points to the automata of texts, by the `a` of COPY nodes */
    Array frames, returns, frame_notes, canonical_frames, threads, states, subsets, used;
    Index frame_index, state_index, seen_index, subset_index, move_index, union_index;
    Array work, kept, seen, opened, callers, entered, locals, ends, branches, moves, seeds, united, unions, waiting, sorting, flats, flat_at;
    int64_t local_bytes, branch_bytes;
    uint32_t closure;
    int64_t spare; /* work that may still be done; see work_budget.h */
    int32_t rows, visits, hashed, *path, *side, *places, limit, wanted, final, uniting, hasty;
    Vocabulary vocabulary;
} Core;

#endif
