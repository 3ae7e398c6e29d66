/* Tiles of attention: neighbouring query tokens of one sequence, with the heads of one KV head. */
#ifndef SGL_ATTENTION_ATTENTION_TILES_H
#define SGL_ATTENTION_ATTENTION_TILES_H

#include "../base/thread_pool.h"
#include "attention.h"

enum { MOST_TILE = 64, TILE_NUMBERS = 4096 }; /* queries; numbers that they mix, which stay in the first cache */

typedef struct {
    const Attention *job;
    long *starts; /* [count + 1] rows at which tiles begin, and where the last ends */
    long count;
} Tiles;

typedef struct {
    const Attention *job;
    long head, queries;                                        /* of keys; a row's queries are neighbours, rows are in order */
    long row_of[MOST_TILE], head_of[MOST_TILE];                /* of each query */
    long first[MOST_TILE], end[MOST_TILE];                     /* positions that it sees; both rise with the rows */
    float most[MOST_TILE], total[MOST_TILE], mixed[TILE_NUMBERS]; /* its softmax so far; [queries] [dim] */
} Tile;

INLINE long most_in_tile(long dim) {
    const long most = TILE_NUMBERS / dim;
    return most < MOST_TILE ? most : MOST_TILE;
}

/* Where the slot of a row's position 0 would be. */
INLINE const int32_t *origin_of(const Attention *job, long row) {
    return (const int32_t *)((uintptr_t)job->slots[row] - (uintptr_t)job->before[row] * sizeof(int32_t));
}

/* Of each row of a tile and KV head the queries `from` to `from + some` of its group. */
INTERNAL void fill_tile(const Tiles *tiles, long index, long from, long some, Tile *tile);
INTERNAL void share_tiles(Piece run, const Attention *job); /* run: with a Tiles and the number of a tile */

#endif
