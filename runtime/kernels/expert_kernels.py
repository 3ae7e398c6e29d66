"""Triton kernels that multiply tokens with the matrices of their experts, which lie in one tensor [experts, outputs, inputs].

Pairs of a token and an expert are numbered token * TOP + choice. For few rows each pair has programs of its own, which read the
weight in place; for more, pairs are sorted into blocks of one expert (expert_blocks), whose products are those of `matmul`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .activation import activated
from .ahead import entry
from .matmul import tile_at
from .one_row_kernels import lane_sums, read_block, read_shared


@triton.jit
def gated(gate, up, limit, LIMITED: tl.constexpr, NAME: tl.constexpr):
    """activation(gate) * up.  LIMITED: gate is at most `limit`, up within it on both sides, and 1 is added to up."""
    if LIMITED:
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL) + 1.0
    return activated(gate, NAME) * up


@triton.jit
def _first(weight, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """[R, BLOCK] of rows [R, 1] of the weight."""
    return read_block(weight, rows, tl.arange(0, BLOCK)[None, :], SIZE, VECTOR, SIZE % BLOCK == 0)


@triton.jit
def _chain(
    sums, block, weight, x, rows, factor, SIZE: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    """sums [R, BLOCK / VECTOR] + the products of x [SIZE] with rows [R] of the weight, whose first block is read.

    WEIGHED: x times `factor`, rounded.
    """
    EVEN: tl.constexpr = SIZE % BLOCK == 0
    STEPS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    k = tl.arange(0, BLOCK)[None, :]
    for step in tl.static_range(STEPS):
        current = block
        if step + 1 < STEPS:
            block = read_block(weight, rows, k + (step + 1) * BLOCK, SIZE, VECTOR, EVEN)
        values = read_shared(x, k + step * BLOCK, SIZE, EVEN)
        if WEIGHED:
            values = (values * factor).to(x.dtype.element_ty).to(tl.float32)
        sums += lane_sums(current.to(tl.float32) * values, VECTOR)
    return sums


@entry
@triton.jit
def gather_up(
    x, weight, bias, chosen, weights, out, stride, inner, limit, SIZE: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr, NAME: tl.constexpr, LIMITED: tl.constexpr, BIASED: tl.constexpr, WEIGHED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out [pairs, inner] = activation(gate) * up, where an expert's weight [2 inner, SIZE] holds gate above up.

    A program owns ROWS / 2 pairs of rows; grid (ceil(2 * inner / ROWS), pairs). `gather_down` may only begin behind the wait.
    """
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    PAIRS: tl.constexpr = ROWS // 2
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(chosen + pair).to(tl.int64)
    factor = tl.load(weights + pair)
    if WEIGHED:
        factor = factor.to(x.dtype.element_ty).to(tl.float32)
    lane, first = tl.arange(0, ROWS), tl.program_id(0) * PAIRS
    rows = expert * 2 * inner + tl.minimum(first + lane // 2, inner - 1) + lane % 2 * inner
    sums = tl.zeros([ROWS, BLOCK // VECTOR], tl.float32)
    block = _first(weight, rows[:, None], SIZE, BLOCK, VECTOR)
    sums = _chain(sums, block, weight, x + pair // TOP * stride, rows[:, None], factor, SIZE, BLOCK, VECTOR, WEIGHED)
    y = tl.sum(sums, 1)
    if BIASED:
        y += tl.load(bias + rows).to(tl.float32)
    gate, up = tl.split(tl.reshape(y, [PAIRS, 2]))
    place = first + tl.arange(0, PAIRS)
    tl.store(out + pair * inner + place, gated(gate, up, limit, LIMITED, NAME), place < inner)


@triton.jit
def _besides(total, every, switch, residual, row, place, inside, outputs, SHARED: tl.constexpr, SWITCHED: tl.constexpr, ADDED: tl.constexpr):
    """total and what the shared network gives the row, and what it is added to."""
    at = row * outputs + place
    if SHARED:
        share = tl.load(every + at, inside, other=0.0).to(tl.float32)
        if SWITCHED:
            share *= 1.0 / (1.0 + tl.exp(-tl.load(switch + row)))
        total += share
    if ADDED:
        total += tl.load(residual + at, inside, other=0.0).to(tl.float32)
    return total


@entry
@triton.jit
def gather_down(
    x, weight, bias, chosen, weights, every, switch, residual, out, outputs, SIZE: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr, BIASED: tl.constexpr, WEIGHED: tl.constexpr, SHARED: tl.constexpr, SWITCHED: tl.constexpr,
    ADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = the sum over a row's experts, in the order of choice, of x [pairs, SIZE] times their weights [outputs, SIZE].

    WEIGHED: times the router's weights.  Grid (ceil(outputs / ROWS), rows).  DEPENDENT: behind `gather_up`, which has waited for
    what chose before it lets this begin: the first weights are under way while it ends.
    """
    row, place = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = place < outputs
    output = tl.minimum(place, outputs - 1)
    first = tl.load(chosen + row * TOP).to(tl.int64) * outputs + output
    block = _first(weight, first[:, None], SIZE, BLOCK, VECTOR)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    sums, added = tl.zeros([ROWS, BLOCK // VECTOR], tl.float32), tl.zeros([ROWS], tl.float32)
    for choice in tl.static_range(TOP):
        pair = row * TOP + choice
        rows = tl.load(chosen + pair).to(tl.int64) * outputs + output
        factor = tl.load(weights + pair) if WEIGHED else 1.0
        part, current = tl.zeros([ROWS, BLOCK // VECTOR], tl.float32), block
        if choice + 1 < TOP:
            following = tl.load(chosen + pair + 1).to(tl.int64) * outputs + output
            block = _first(weight, following[:, None], SIZE, BLOCK, VECTOR)
        sums += factor * _chain(part, current, weight, x + pair * SIZE, rows[:, None], factor, SIZE, BLOCK, VECTOR, False)
        if BIASED:
            added += factor * tl.load(bias + rows).to(tl.float32)
    total = tl.sum(sums, 1) + added
    total = _besides(total, every, switch, residual, row, output, inside, outputs, SHARED, SWITCHED, ADDED)
    tl.store(out + row * outputs + place, total, inside)


@triton.jit
def _left(weight, first, start, outputs, inputs, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIBED: tl.constexpr, EVEN: tl.constexpr):
    """Rows `first` on of a weight's outputs, inputs from `start` on: [OUTPUTS, DEPTH]; zeros outside of the inputs."""
    if DESCRIBED:
        return weight.load([first.to(tl.int32), start])
    else:
        k = start + tl.arange(0, DEPTH)[None, :]
        row = tl.arange(0, OUTPUTS)[:, None]
        places = weight + (first + tl.minimum(row, outputs - 1)) * inputs + k
        if EVEN:
            return tl.load(places)
        else:
            return tl.load(places, k < inputs, other=0.0)


@triton.jit
def _right(x, rows, present, start, inputs, DEPTH: tl.constexpr, EVEN: tl.constexpr):
    """[ROWS, DEPTH] of gathered rows; zeros where none is present."""
    k = start + tl.arange(0, DEPTH)[None, :]
    inside = present[:, None] if EVEN else present[:, None] & (k < inputs)
    return tl.load(x + rows[:, None] + k, inside, other=0.0)


@entry
@triton.jit(do_not_specialize=["count"])
def grouped(
    x, weight, bias, weights, out, pairs, experts, total, count, outputs, inputs, stride, limit,
    TOP: tl.constexpr, NAME: tl.constexpr, LIMITED: tl.constexpr, BIASED: tl.constexpr, WEIGHED: tl.constexpr, DESCRIBED: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out [count, outputs]: of each pair of the blocks, row pair / TOP of x [.., inputs] times its expert's weight.

    NAME: of an activation: the weight holds gate above up, and activation(gate) * up is given.  WEIGHED: x times `weights` [count], rounded.
    Grid (most blocks * tiles of outputs,); what is beyond the `total` blocks ends at once.
    """
    tile, blocks = tl.program_id(0), tl.load(total)
    output_tiles = tl.cdiv(outputs, OUTPUTS)
    if tile < blocks * output_tiles:
        block, output_tile = tile_at(tile, blocks, output_tiles, GROUP)
        expert = tl.load(experts + block).to(tl.int64)
        pair = tl.load(pairs + block * ROWS + tl.arange(0, ROWS))
        present = pair < count
        rows = (pair // TOP).to(tl.int64) * stride
        if WEIGHED:
            factor = tl.load(weights + pair, present, other=0.0).to(x.dtype.element_ty).to(tl.float32)[:, None]
        lane = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
        left = outputs - output_tile * OUTPUTS
        first = expert * outputs + output_tile * OUTPUTS
        if NAME != "":
            first += expert * outputs
        sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
        ups = tl.zeros((OUTPUTS if NAME != "" else 16, ROWS), tl.float32)
        for start in range(0, inputs, DEPTH):
            right = _right(x, rows, present, start, inputs, DEPTH, EVEN)
            if WEIGHED:
                right = (right.to(tl.float32) * factor).to(right.dtype)
            sums = tl.dot(_left(weight, first, start, left, inputs, OUTPUTS, DEPTH, DESCRIBED, EVEN), right.T, sums, input_precision="ieee")
            if NAME != "":
                up = _left(weight, first + outputs, start, left, inputs, OUTPUTS, DEPTH, DESCRIBED, EVEN)
                ups = tl.dot(up, right.T, ups, input_precision="ieee")
        inside = lane < outputs
        places = first - output_tile * OUTPUTS + lane
        if BIASED:
            sums += tl.load(bias + places, inside, other=0.0).to(tl.float32)[:, None]
        if NAME != "":
            if BIASED:
                ups += tl.load(bias + outputs + places, inside, other=0.0).to(tl.float32)[:, None]
            sums = gated(sums, ups, limit, LIMITED, NAME)
        at = pair.to(tl.int64)[None, :] * outputs + lane[:, None]
        tl.store(out + at, sums.to(out.dtype.element_ty), inside[:, None] & present[None, :])


@entry
@triton.jit
def combine(
    each, weights, every, switch, residual, out, outputs, TOP: tl.constexpr, BLOCK: tl.constexpr, WEIGHED: tl.constexpr,
    SHARED: tl.constexpr, SWITCHED: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = the sum of `each` [rows * TOP, outputs], in the order of choice, times weights. Grid (rows, blocks of outputs)."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < outputs
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP):
        pair = row * TOP + choice
        given = tl.load(each + pair * outputs + place, inside, other=0.0).to(tl.float32)
        total += given * tl.load(weights + pair) if WEIGHED else given
    total = _besides(total, every, switch, residual, row, place, inside, outputs, SHARED, SWITCHED, ADDED)
    tl.store(out + row * outputs + place, total, inside)
