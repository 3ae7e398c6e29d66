/* The blocks from `block` to `end` for up to 12 rows, two at a time where the sums of both fit the registers.
   BLOCKS: the function's head up to its name; SUMS: what sums some rows over one or two blocks. Both end here. */

BLOCKS(const Product *job, long row, long rows, long block, long end) {
#define ONE(r) SUMS(job, row, block, r, 1)
#define TWO(r) SUMS(job, row, block, r, 2)
#define MORE(r) SUMS(job, row, block, r + 6, 1)
    if (rows <= 6)
        for (; block + 2 <= end; block += 2) { EACH_ROWS(rows, TWO) }
    for (; block < end; block++) {
        if (rows <= 6) { EACH_ROWS(rows, ONE) } else { EACH_ROWS(rows - 6, MORE) }
    }
#undef ONE
#undef TWO
#undef MORE
}
#undef BLOCKS
#undef SUMS
