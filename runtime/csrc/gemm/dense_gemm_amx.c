/* Products of bfloat16 weights in blocks of 32 outputs (gemm.h) by AMX, whose registers are tiles of 16 rows of 64 bytes.

   Of a block 16 pairs of inputs are two tiles as they are stored, and of x 16 rows of 32 inputs are one. What a row's sum is does not depend on
   the other rows: it runs over tiles of inputs in order, and within each by the instruction TDPBF16PS (Intel's Software Developer's
   Manual, volume 2), which adds the even inputs, adds the odd ones, and then both. */

#include "../base/cpu_isa.h"
#include "dense_gemm.h"
#include "dense_gemm_avx512.h"

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <sys/syscall.h>
#include <unistd.h>
#define AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))

enum { TILE_ROWS = 16, TILE_INPUTS = 32, TILE_LINE = 64, AMX_ROWS = 2 * TILE_ROWS };
enum { REQUEST_STATE = 0x1023, TILE_STATE = 18, TILES_SAVED = 3 << 17 }; /* arch_prctl: tiles are state that a process asks for */

typedef struct { /* what LDTILECFG reads: sums 0 to 3, of two tiles of rows each two of outputs; x 4 and 5; weights 6 and 7 */
    uint8_t palette, start, none[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileShapes;

INTERNAL int has_amx(void) { /* for bfloat16, in this process */
    unsigned a, b, c, d, saved, high;
    if (!has_native_bfloat16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 5) != 5) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (saved & TILES_SAVED) == TILES_SAVED && !syscall(SYS_arch_prctl, REQUEST_STATE, TILE_STATE);
}

/* The intrinsics do not say that they read memory. */
INLINE void keep_written(void) { __asm__ volatile("" ::: "memory"); }

AMX INLINE void shape_tiles(long rows) {
    const uint8_t first = rows < TILE_ROWS ? rows : TILE_ROWS, second = rows > TILE_ROWS ? rows - TILE_ROWS : 1;
    const TileShapes shapes = {
        .palette = 1,
        .bytes = {TILE_LINE, TILE_LINE, TILE_LINE, TILE_LINE, TILE_LINE, TILE_LINE, TILE_LINE, TILE_LINE},
        .rows = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS},
    };
    keep_written();
    _tile_loadconfig(&shapes);
}

/* sums += x w of one tile of inputs. x: of rows that are `step` bytes apart.  more: there are more rows than a tile has. */
AMX INLINE void add_tiles(const bfloat16 *x, long step, const bfloat16 *w, const int more) {
    _tile_loadd(6, w, 2 * TILE_LINE);
    _tile_loadd(7, w + TILE_INPUTS, 2 * TILE_LINE);
    _tile_loadd(4, x, step);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!more) return;
    _tile_loadd(5, (const char *)x + TILE_ROWS * step, step);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* The inputs after the last whole tile, filled up with zeros. */
AMX INLINE void add_rest(const bfloat16 *x, long rows, long inputs, const bfloat16 *w, long rest, const int more) {
    bfloat16 own[AMX_ROWS][TILE_INPUTS] = {0}, weights[TILE_INPUTS * BLOCK] = {0};
    for (long r = 0; r < rows; r++) memcpy(own[r], x + r * inputs, rest * sizeof(bfloat16));
    memcpy(weights, w, rest * BLOCK * sizeof(bfloat16));
    keep_written();
    add_tiles(own[0], sizeof own[0], weights, more);
}

/* The outputs of a block, of which a row is one line of memory. */
AMX INLINE void finish_tiles(const Product *job, long row, long rows, long output, float (*totals)[BLOCK]) {
    if (job->wide || job->weight->outputs - output < BLOCK) {
        for (long r = 0; r < rows; r++)
            for (long v = 0; v < BLOCK; v += LANES) finish_bf16(job, row + r, output + v, _mm512_loadu_ps(totals[r] + v));
        return;
    }
    const bfloat16 *bias = job->weight->bias, *residual = job->residual;
    for (long r = 0; r < rows; r++) {
        const long place = (row + r) * job->width + output;
        __m512 first = _mm512_loadu_ps(totals[r]), second = _mm512_loadu_ps(totals[r] + LANES);
        if (bias) first = _mm512_add_ps(first, widened(bias + output, 0xffff)), second = _mm512_add_ps(second, widened(bias + output + LANES, 0xffff));
        if (residual) first = _mm512_add_ps(first, widened(residual + place, 0xffff)), second = _mm512_add_ps(second, widened(residual + place + LANES, 0xffff));
        _mm512_storeu_si512((bfloat16 *)job->y + place, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    }
}

AMX INLINE void sums_amx(const Product *job, long row, long rows, long block, const int more, const int near) {
    const long n = job->weight->inputs, whole = n / TILE_INPUTS;
    const bfloat16 *x = (const bfloat16 *)job->x + row * n, *w = (const bfloat16 *)job->weight->data + block * n * BLOCK;
    float totals[AMX_ROWS][BLOCK] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    if (more) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (long i = 0; i < whole; i++, x += TILE_INPUTS, w += TILE_INPUTS * BLOCK) {
        for (long at = i * TILE_ROWS; at < (i + 1) * TILE_ROWS && at < job->lines; at++) __builtin_prefetch(job->fetched[at / FETCHED_LINES] + at % FETCHED_LINES * 64);
        if (!near) prefetch((const char *)w + FAR, TILE_INPUTS * BLOCK * sizeof(bfloat16));
        add_tiles(x, n * sizeof(bfloat16), w, more);
    }
    if (n % TILE_INPUTS) add_rest(x, rows, n, w, n % TILE_INPUTS, more);
    _tile_stored(0, totals[0], sizeof totals[0]);
    _tile_stored(1, totals[0] + LANES, sizeof totals[0]);
    if (more) {
        _tile_stored(2, totals[TILE_ROWS], sizeof totals[0]);
        _tile_stored(3, totals[TILE_ROWS] + LANES, sizeof totals[0]);
    }
    keep_written();
    finish_tiles(job, row, rows, block * BLOCK, totals);
}

/* Any number of rows. */
AMX INTERNAL void blocks_amx(const Product *job, long row, long rows, long block, long end) {
    const long last = row + rows, whole = row + rows / AMX_ROWS * AMX_ROWS;
    Product later = *job;
    later.lines = 0;
    if (whole > row) {
        shape_tiles(AMX_ROWS);
        for (long b = block; b < end; b++)
            for (long r = row; r < whole; r += AMX_ROWS)
                if (r == row) sums_amx(job, r, AMX_ROWS, b, 1, 0);
                else sums_amx(&later, r, AMX_ROWS, b, 1, 1);
    }
    if (whole < last) {
        const Product *own = whole > row ? &later : job;
        shape_tiles(last - whole);
        for (long b = block; b < end; b++)
            if (last - whole > TILE_ROWS) sums_amx(own, whole, last - whole, b, 1, 0);
            else sums_amx(own, whole, last - whole, b, 0, 0);
    }
    _tile_release();
}
#else
INTERNAL int has_amx(void) { return 0; }
INTERNAL void blocks_amx(const Product *job, long row, long rows, long block, long end) { (void)job, (void)row, (void)rows, (void)block, (void)end; }
#endif
