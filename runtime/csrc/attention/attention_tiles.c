/* How attention is cut into tiles: see attention_tiles.h. */

#include "attention_tiles.h"

/* Whether the row goes on where the one before ends. Rows that only seem to are attended rightly too. */
INLINE int goes_on(const Attention *job, long row) {
    const int64_t before = job->before[row], end = before + job->length[row];
    return origin_of(job, row) == origin_of(job, row - 1) && before >= job->before[row - 1] && end >= job->before[row - 1] + job->length[row - 1];
}

static void cut_tiles(Tiles *tiles) {
    const Attention *job = tiles->job;
    const long most = most_in_tile(job->dim) / job->group;
    for (long row = 0; row < job->rows; row++)
        if (!row || row - tiles->starts[tiles->count - 1] >= most || !goes_on(job, row)) tiles->starts[tiles->count++] = row;
    tiles->starts[tiles->count] = job->rows;
}

/* Of each row of a tile and KV head the queries `from` to `from + some` of its group. A head's tiles follow each other, so that its keys
   stay in the second cache; late rows see the most and come first. */
INTERNAL void fill_tile(const Tiles *tiles, long index, long from, long some, Tile *tile) {
    const Attention *job = tiles->job;
    const long *start = tiles->starts + tiles->count - 1 - index % tiles->count;
    tile->job = job, tile->head = index / tiles->count, tile->queries = 0;
    for (long row = start[0]; row < start[1]; row++)
        for (long g = 0; g < some; g++) {
            const long t = tile->queries++;
            tile->row_of[t] = row, tile->head_of[t] = tile->head * job->group + from + g;
            tile->first[t] = job->before[row], tile->end[t] = job->before[row] + job->length[row];
            tile->most[t] = -INFINITY, tile->total[t] = 0;
        }
}

INTERNAL void share_tiles(Piece run, const Attention *job) {
    Tiles tiles = {job, malloc((job->rows + 1) * sizeof(long)), 0};
    if (!tiles.starts) abort(); /* as in thread_scratch.c */
    cut_tiles(&tiles);
    share(run, &tiles, tiles.count * job->kv_heads);
    free(tiles.starts);
}
