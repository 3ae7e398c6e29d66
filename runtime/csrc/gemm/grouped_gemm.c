/* Products of many weights at once: their pieces are shared as those of one product are. */

#include "dense_gemm.h"
#include "gemm.h"

typedef struct {
    const Product *jobs;
    const long *first; /* piece of each job, and how many there are in all */
    long count;
} Grouped;

static void grouped_piece(const void *work, long index) {
    const Grouped *all = work;
    long low = 0, high = all->count;
    while (high - low > 1) {
        const long middle = (low + high) / 2;
        if (all->first[middle] <= index) low = middle;
        else high = middle;
    }
    product_piece(&all->jobs[low], index - all->first[low]);
}

INTERNAL void products(Product *jobs, long count, long *first) {
    int plain = 1;
    for (long i = 0; i < count; i++) plain &= jobs[i].weight->kind < INT8_FLOAT32 && !widens(jobs[i].weight);
    if (!plain) {
        for (long i = 0; i < count; i++) product(&jobs[i]);
        return;
    }
    first[0] = 0;
    for (long i = 0; i < count; i++) {
        jobs[i].piece = PIECE_BLOCKS, jobs[i].width = jobs[i].weight->outputs;
        first[i + 1] = first[i] + ceiling(ceiling(jobs[i].weight->outputs, BLOCK), PIECE_BLOCKS) * ceiling(jobs[i].rows, PIECE_ROWS);
    }
    const Grouped all = {jobs, first, count};
    share(grouped_piece, &all, first[count]);
}

