"""Triton kernels that multiply one row with a weight, bound by reading the weight once.

A weight is of plain numbers, or of 4 bits (`gemv_4bit_sums`). A program owns a few rows of it. Its first block of them
is in flight before it reads x, which also lets its reads run under the tail of the kernel before (`DEPENDENT`:
programmatic dependent launch). The norm of x needs no separate pass: the sum of squares is collected on the way and
scales the products at the end, as does the scale [outputs] of a weight in float8.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..launch.compile_ahead import entry
from .gemv_4bit_sums import block_sums, read_blocks


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
def _read_first(weight, rows, outputs, FORMAT: tl.constexpr, CUT: tl.constexpr):
    if FORMAT is None:
        k = tl.arange(0, CUT.block)[None, :]
        EVEN: tl.constexpr = CUT.inputs % CUT.block == 0
        return (read_block(weight[0], rows[:, None].to(tl.int64), k, CUT.inputs, CUT.vector, EVEN),)
    else:
        return read_blocks(weight[0], weight[1], rows, 0, outputs, FORMAT, CUT)


@triton.jit
def begin(
    weight, rows, pair, outputs, FORMAT: tl.constexpr, CUT: tl.constexpr, PAIR: tl.constexpr, DEPENDENT: tl.constexpr
):
    """The first blocks of some rows [R], in flight before the preceding kernels have ended; they have on return.

    weight: words, meta and outer, see `PackedWeight`; or numbers, nothing and their scales.
    pair: h, pairs and places of an adapter's addition, see `gemv_lora`; its B and h of these rows, [R, width] each, are
        returned too. B is loaded before the preceding kernels have ended.  PAIR: None: nothing is added.
    """
    if PAIR is None:
        first = _read_first(weight, rows, outputs, FORMAT, CUT)
        if DEPENDENT:
            gdc_launch_dependents()
            gdc_wait()
        return first, ()
    else:
        h, pairs, pair_at = pair
        piece = (rows >= PAIR.second).to(tl.int32) + (rows >= PAIR.third).to(tl.int32)
        second, rank = tl.load(pair_at + 4 * piece + 1), tl.load(pair_at + 4 * piece + 2)
        first = _read_first(weight, rows, outputs, FORMAT, CUT)
        r = tl.arange(0, PAIR.width)[None, :]
        there = r < rank[:, None]
        of_rank = tl.load(pairs + second[:, None] + r.to(tl.int64) * outputs + rows[:, None], there, other=0.0)
        if DEPENDENT:
            gdc_launch_dependents()
            gdc_wait()
        return first, (of_rank, tl.load(h + piece[:, None] * PAIR.width + r, there, other=0.0))


@triton.jit
def values_at(start, rows, PRESENT: tl.constexpr):
    """What some rows are scaled by or added to, as float32, or 0. Read before the products, which hide the wait."""
    if PRESENT:
        return tl.load(start + rows).to(tl.float32)
    return tl.zeros([rows.shape[0]], tl.float32)


@triton.jit
def _number_sums(block, x, norm, weight, rows, CUT: tl.constexpr, NORMED: tl.constexpr):
    """The products of x with some rows of the weight, begun with their first block: [R], float32; and x's squares."""
    INPUTS: tl.constexpr = CUT.inputs
    BLOCK: tl.constexpr = CUT.block
    VECTOR: tl.constexpr = CUT.vector
    EVEN: tl.constexpr = INPUTS % BLOCK == 0
    STEPS: tl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    k = tl.arange(0, BLOCK)[None, :]
    rows = rows[:, None].to(tl.int64)
    sums = tl.zeros([rows.shape[0], BLOCK // VECTOR], tl.float32)
    squares = tl.zeros([1, BLOCK // VECTOR], tl.float32)
    for step in tl.static_range(STEPS):
        current = block
        if step + 1 < STEPS:
            block = read_block(weight, rows, k + (step + 1) * BLOCK, INPUTS, VECTOR, EVEN)
        values = read_shared(x, k + step * BLOCK, INPUTS, EVEN)
        if NORMED:
            squares += lane_sums(values * values, VECTOR)
            values *= read_shared(norm, k + step * BLOCK, INPUTS, EVEN)
        sums += lane_sums(current.to(tl.float32) * values, VECTOR)
    return tl.sum(sums, 1), squares


@triton.jit
def products(begun, x, norm, weight, rows, outputs, eps, FORMAT: tl.constexpr, CUT: tl.constexpr, NORMED: tl.constexpr):
    """The products of (normalised) x with some rows of the weight, begun with `begin`: [R], float32."""
    factor = values_at(weight[2], rows, CUT.scaled)
    if FORMAT is None:
        products, squares = _number_sums(begun[0], x, norm, weight[0], rows, CUT, NORMED)
    else:
        products, squares = block_sums(begun, x, norm, weight[0], weight[1], rows, outputs, FORMAT, CUT, NORMED)
    if CUT.scaled:
        products *= factor
    if NORMED:
        products *= tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / CUT.inputs + eps)
    return products


@triton.jit
def plus_pair(y, added, PAIR: tl.constexpr):
    """y [R] and what an adapter adds, see `begin`."""
    if PAIR is not None:
        y += tl.sum(added[0].to(tl.float32) * added[1], 1)
    return y


@entry
@triton.jit
def linear(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    residual,
    out,
    outputs,
    eps,
    FORMAT: tl.constexpr,
    CUT: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    PAIR: tl.constexpr = None,
):
    """out = norm(x) @ (weight * scale).T + bias + residual, [outputs]; grid (ceil(outputs / CUT.rows),)."""
    weight, pair = (words, meta, outer), (h, pairs, pair_at)
    rows = tl.program_id(0) * CUT.rows + tl.arange(0, CUT.rows)
    inside = rows < outputs
    rows = tl.minimum(rows, outputs - 1)  # whole blocks are read without a mask
    begun, more = begin(weight, rows, pair, outputs, FORMAT, CUT, PAIR, DEPENDENT)
    y = values_at(bias, rows, BIASED) + values_at(residual, rows, ADDED)
    y += products(begun, x, norm, weight, rows, outputs, eps, FORMAT, CUT, NORMED)
    tl.store(out + rows, plus_pair(y, more, PAIR), inside)


@entry
@triton.jit
def gate_up(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    out,
    outputs,
    eps,
    FORMAT: tl.constexpr,
    CUT: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    NAME: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    PAIR: tl.constexpr = None,
):
    """out = activation(gate) * up, [outputs]; a program owns CUT.rows / 2 pairs; grid (ceil(2 * outputs / rows),)."""
    PAIRS: tl.constexpr = CUT.rows // 2
    weight, pair = (words, meta, outer), (h, pairs, pair_at)
    first = tl.program_id(0) * PAIRS
    lane = tl.arange(0, CUT.rows)
    rows = tl.minimum(first + lane // 2, outputs - 1) + lane % 2 * outputs
    begun, more = begin(weight, rows, pair, 2 * outputs, FORMAT, CUT, PAIR, DEPENDENT)
    y = values_at(bias, rows, BIASED)
    y += products(begun, x, norm, weight, rows, 2 * outputs, eps, FORMAT, CUT, NORMED)
    gate, up = tl.split(tl.reshape(plus_pair(y, more, PAIR), [PAIRS, 2]))
    place = first + tl.arange(0, PAIRS)
    tl.store(out + place, activated(gate, NAME) * up, place < outputs)


@triton.jit
def _store_halves(start, dim, low, high, HALF: tl.constexpr, wanted):
    tl.store(start + dim, low.to(start.dtype.element_ty), wanted)
    tl.store(start + HALF + dim, high.to(start.dtype.element_ty), wanted)


@entry
@triton.jit
def heads(
    x,
    norm,
    words,
    meta,
    outer,
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
    FORMAT: tl.constexpr,
    CUT: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    PAIR: tl.constexpr = None,
):
    """Queries, keys and values, rotated and written to their place.

    A program owns CUT.rows / 2 dimensions of the first half of one head and their partners in the second;
    grid (heads * ceil(HALF / (CUT.rows / 2)),).
    """
    PAIRS: tl.constexpr = CUT.rows // 2
    PROGRAMS: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    OUTPUTS: tl.constexpr = (QUERIES + 2 * KEYS) * 2 * HALF
    weight, pair = (words, meta, outer), (h, pairs, pair_at)
    head = tl.program_id(0) // PROGRAMS
    first = tl.program_id(0) % PROGRAMS * PAIRS
    lane = tl.arange(0, CUT.rows)
    rows = head * 2 * HALF + tl.minimum(first + lane // 2, HALF - 1) + lane % 2 * HALF
    begun, more = begin(weight, rows, pair, OUTPUTS, FORMAT, CUT, PAIR, DEPENDENT)
    dim = first + tl.arange(0, PAIRS)
    cos, sin, slot = turn_and_place(dim, angles, positions, slots, HALF)
    y = values_at(bias, rows, BIASED)
    y += products(begun, x, norm, weight, rows, OUTPUTS, eps, FORMAT, CUT, NORMED)
    low, high = tl.split(tl.reshape(plus_pair(y, more, PAIR), [PAIRS, 2]))
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
