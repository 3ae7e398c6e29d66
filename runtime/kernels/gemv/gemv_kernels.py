"""Triton kernels that multiply one row with a weight, bound by reading the weight once.

A program owns a few rows of the weight. Its first block of them is in flight before it reads x, which also lets its
reads run under the tail of the kernel before (`DEPENDENT`: programmatic dependent launch). The norm of x needs no
separate pass: the sum of squares is collected on the way and scales the products at the end, as does the scale
[outputs] of a weight in float8.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..launch.compile_ahead import entry


@triton.jit
def read_block(start, rows, k, SIZE: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr):
    """Weights of rows [R, 1] and columns k [1, BLOCK], each read once, by the thread that reads x there."""
    places = tl.max_contiguous(start + rows * SIZE + k, [1, VECTOR])
    if EVEN:
        return tl.load(places, eviction_policy="evict_first")
    return tl.load(places, k < SIZE, other=0.0, eviction_policy="evict_first")


@triton.jit
def read_shared(start, k, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """Values that every program reads, as float32."""
    if EVEN:
        return tl.load(start + k).to(tl.float32)
    return tl.load(start + k, k < SIZE, other=0).to(tl.float32)


@triton.jit
def lane_sums(values, VECTOR: tl.constexpr):
    """[R, BLOCK] -> [R, BLOCK / VECTOR]: sums within one thread."""
    rows: tl.constexpr = values.shape[0]
    return tl.sum(tl.reshape(values, [rows, values.shape[1] // VECTOR, VECTOR]), 2)


@triton.jit
def begin(weight, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, DEPENDENT: tl.constexpr):
    """The first block of some rows [R], in flight before the preceding kernels have ended; they have on return."""
    block = read_block(
        weight, rows[:, None].to(tl.int64), tl.arange(0, BLOCK)[None, :], SIZE, VECTOR, SIZE % BLOCK == 0
    )
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    return block


@triton.jit
def begin_adapted(
    weight,
    rows,
    h,
    pairs,
    pair_at,
    outputs,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    DEPENDENT: tl.constexpr,
    WIDTH: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
):
    """`begin`, and an adapter's addition to these rows, its B and h, [R, WIDTH] each, see `gemv_lora`.

    B is loaded before the preceding kernels have ended.
    WIDTH: 0: nothing is added.  SECOND, THIRD: the rows with which pieces 1 and 2 begin.
    """
    if WIDTH == 0:
        block = begin(weight, rows, SIZE, BLOCK, VECTOR, DEPENDENT)
        of_rank, once = block, block  # unused
    else:
        piece = (rows >= SECOND).to(tl.int32) + (rows >= THIRD).to(tl.int32)
        second, rank = tl.load(pair_at + 4 * piece + 1), tl.load(pair_at + 4 * piece + 2)
        block = begin(weight, rows, SIZE, BLOCK, VECTOR, False)
        r = tl.arange(0, WIDTH)[None, :]
        there = r < rank[:, None]
        of_rank = tl.load(pairs + second[:, None] + r.to(tl.int64) * outputs + rows[:, None], there, other=0.0)
        if DEPENDENT:
            gdc_launch_dependents()
            gdc_wait()
        once = tl.load(h + piece[:, None] * WIDTH + r, there, other=0.0)
    return block, of_rank, once


@triton.jit
def values_at(start, rows, PRESENT: tl.constexpr):
    """What some rows are scaled by or added to, as float32, or 0. Read before the products, which hide the wait."""
    if PRESENT:
        return tl.load(start + rows).to(tl.float32)
    return tl.zeros([rows.shape[0]], tl.float32)


@triton.jit
def products(
    block,
    x,
    norm,
    weight,
    scale,
    rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    NORMED: tl.constexpr,
    SCALED: tl.constexpr,
):
    """The products of (normalised) x with some rows of the weight, begun with their first block: [R], float32."""
    factor = values_at(scale, rows, SCALED)
    EVEN: tl.constexpr = SIZE % BLOCK == 0
    STEPS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    k = tl.arange(0, BLOCK)[None, :]
    rows = rows[:, None].to(tl.int64)
    sums = tl.zeros([rows.shape[0], BLOCK // VECTOR], tl.float32)
    squares = tl.zeros([1, BLOCK // VECTOR], tl.float32)
    for step in tl.static_range(STEPS):
        current = block
        if step + 1 < STEPS:
            block = read_block(weight, rows, k + (step + 1) * BLOCK, SIZE, VECTOR, EVEN)
        values = read_shared(x, k + step * BLOCK, SIZE, EVEN)
        if NORMED:
            squares += lane_sums(values * values, VECTOR)
            values *= read_shared(norm, k + step * BLOCK, SIZE, EVEN)
        sums += lane_sums(current.to(tl.float32) * values, VECTOR)
    products = tl.sum(sums, 1)
    if SCALED:
        products *= factor
    if NORMED:
        products *= tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / SIZE + eps)
    return products


@entry
@triton.jit
def linear(
    x,
    norm,
    weight,
    scale,
    bias,
    residual,
    out,
    outputs,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    SCALED: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    WIDTH: tl.constexpr = 0,
    SECOND: tl.constexpr = 0,
    THIRD: tl.constexpr = 0,
):
    """out = norm(x) @ (weight * scale).T + bias + residual, [outputs]; grid (ceil(outputs / ROWS),)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < outputs
    rows = tl.minimum(rows, outputs - 1)  # whole blocks are read without a mask
    block, of_rank, once = begin_adapted(
        weight, rows, h, pairs, pair_at, outputs, SIZE, BLOCK, VECTOR, DEPENDENT, WIDTH, SECOND, THIRD
    )
    added = values_at(bias, rows, BIASED) + values_at(residual, rows, ADDED)
    y = added + products(block, x, norm, weight, scale, rows, eps, SIZE, BLOCK, VECTOR, NORMED, SCALED)
    if WIDTH > 0:
        y += tl.sum(of_rank.to(tl.float32) * once, 1)
    tl.store(out + rows, y, inside)


@entry
@triton.jit
def gate_up(
    x,
    norm,
    weight,
    scale,
    bias,
    out,
    outputs,
    eps,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    SCALED: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    NAME: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    WIDTH: tl.constexpr = 0,
    SECOND: tl.constexpr = 0,
    THIRD: tl.constexpr = 0,
):
    """out = activation(gate) * up, [outputs]; a program owns ROWS / 2 pairs; grid (ceil(2 * outputs / ROWS),)."""
    PAIRS: tl.constexpr = ROWS // 2
    first = tl.program_id(0) * PAIRS
    lane = tl.arange(0, ROWS)
    rows = tl.minimum(first + lane // 2, outputs - 1) + lane % 2 * outputs
    block, of_rank, once = begin_adapted(
        weight, rows, h, pairs, pair_at, 2 * outputs, SIZE, BLOCK, VECTOR, DEPENDENT, WIDTH, SECOND, THIRD
    )
    y = values_at(bias, rows, BIASED)
    y += products(block, x, norm, weight, scale, rows, eps, SIZE, BLOCK, VECTOR, NORMED, SCALED)
    if WIDTH > 0:
        y += tl.sum(of_rank.to(tl.float32) * once, 1)
    gate, up = tl.split(tl.reshape(y, [PAIRS, 2]))
    pair = first + tl.arange(0, PAIRS)
    tl.store(out + pair, activated(gate, NAME) * up, pair < outputs)


@triton.jit
def _store_halves(start, dim, low, high, HALF: tl.constexpr, wanted):
    tl.store(start + dim, low.to(start.dtype.element_ty), wanted)
    tl.store(start + HALF + dim, high.to(start.dtype.element_ty), wanted)


@entry
@triton.jit
def heads(
    x,
    norm,
    weight,
    scale,
    bias,
    angles,
    positions,
    slots,
    q,
    k_pool,
    v_pool,
    eps,
    k_scale,
    v_scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    SCALED: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    WIDTH: tl.constexpr = 0,
    SECOND: tl.constexpr = 0,
    THIRD: tl.constexpr = 0,
):
    """Queries, keys and values, rotated and written to their place.

    A program owns ROWS / 2 dimensions of the first half of one head and their partners in the second;
    grid (heads * ceil(HALF / (ROWS / 2)),).
    """
    PAIRS: tl.constexpr = ROWS // 2
    PROGRAMS: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    OUTPUTS: tl.constexpr = (QUERIES + 2 * KEYS) * 2 * HALF
    head = tl.program_id(0) // PROGRAMS
    first = tl.program_id(0) % PROGRAMS * PAIRS
    lane = tl.arange(0, ROWS)
    rows = head * 2 * HALF + tl.minimum(first + lane // 2, HALF - 1) + lane % 2 * HALF
    block, of_rank, once = begin_adapted(
        weight, rows, h, pairs, pair_at, OUTPUTS, SIZE, BLOCK, VECTOR, DEPENDENT, WIDTH, SECOND, THIRD
    )
    dim = first + tl.arange(0, PAIRS)
    cos, sin, slot = turn_and_place(dim, angles, positions, slots, HALF)
    y = values_at(bias, rows, BIASED)
    y += products(block, x, norm, weight, scale, rows, eps, SIZE, BLOCK, VECTOR, NORMED, SCALED)
    if WIDTH > 0:
        y += tl.sum(of_rank.to(tl.float32) * once, 1)
    low, high = tl.split(tl.reshape(y, [PAIRS, 2]))
    rotated_and_stored(low, high, head, dim, cos, sin, slot, q, k_pool, v_pool, k_scale, v_scale, QUERIES, KEYS, HALF)


@triton.jit
def turn_and_place(dim, angles, positions, slots, HALF: tl.constexpr):
    """Cosines and sines of dimensions of the first half, and the slot.

    Read before the products, which hide the wait.
    """
    row = angles + tl.load(positions).to(tl.int64) * 4 * HALF
    cos = tl.load(row + dim, dim < HALF, other=0).to(tl.float32)
    sin = tl.load(row + 3 * HALF + dim, dim < HALF, other=0).to(tl.float32)
    return cos, sin, tl.load(slots).to(tl.int64)


@triton.jit
def rotated_and_stored(
    low,
    high,
    head,
    dim,
    cos,
    sin,
    slot,
    q,
    k_pool,
    v_pool,
    k_scale,
    v_scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
):
    """low: dimensions `dim` of the first half of a head; high: their partners in the second."""
    if head < QUERIES + KEYS:
        low, high = low * cos - high * sin, high * cos + low * sin
    kept = slot * KEYS * 2 * HALF
    wanted = dim < tl.where(slot == 0, 0, HALF)
    if head < QUERIES:
        _store_halves(q + head * 2 * HALF, dim, low, high, HALF, dim < HALF)
    elif head < QUERIES + KEYS:
        start = k_pool + kept + (head - QUERIES) * 2 * HALF
        _store_halves(start, dim, low / k_scale, high / k_scale, HALF, wanted)
    else:
        start = v_pool + kept + (head - QUERIES - KEYS) * 2 * HALF
        _store_halves(start, dim, low / v_scale, high / v_scale, HALF, wanted)
