"""Triton kernels that multiply tokens with their experts' matrices, stored in one tensor [experts, outputs, inputs].

Pairs of a token and an expert are numbered token * TOP + choice. They are sorted into blocks of one expert
(`expert_align_blocks`), whose products are those of `batch_invariant_matmul`; small batches have separate kernels
(`expert_gemv_kernels`).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..batch_invariant_matmul import tile_at
from ..launch.compile_ahead import entry


@triton.jit
def gated(gate, up, limit, LIMITED: tl.constexpr, NAME: tl.constexpr):
    """activation(gate) * up.  LIMITED: gate is at most `limit`, up within it on both sides, and 1 is added to up."""
    if LIMITED:
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL) + 1.0
    return activated(gate, NAME) * up


@triton.jit
def add_shared_output(
    total,
    every,
    switch,
    residual,
    row,
    place,
    inside,
    outputs,
    SHARED: tl.constexpr,
    SWITCHED: tl.constexpr,
    ADDED: tl.constexpr,
):
    """total plus the shared network's output of the row, and plus the residual."""
    at = row * outputs + place
    if SHARED:
        share = tl.load(every + at, inside, other=0.0).to(tl.float32)
        if SWITCHED:
            share *= 1.0 / (1.0 + tl.exp(-tl.load(switch + row)))
        total += share
    if ADDED:
        total += tl.load(residual + at, inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def _left(
    weight,
    first,
    start,
    outputs,
    inputs,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EVEN: tl.constexpr,
):
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
def _right(x, rows, first, start, inputs, DEPTH: tl.constexpr, DESCRIBED: tl.constexpr, EVEN: tl.constexpr):
    """[ROWS, DEPTH] of the places `rows`, or those from `first` on."""
    if DESCRIBED:
        return x.load([first, start])
    else:
        k = start + tl.arange(0, DEPTH)[None, :]
        if EVEN:
            return tl.load(x + rows[:, None] + k)
        else:
            return tl.load(x + rows[:, None] + k, k < inputs, other=0.0)


@entry
@triton.jit(do_not_specialize=["count"])
def grouped(
    x,
    weight,
    bias,
    weights,
    out,
    pairs,
    experts,
    total,
    count,
    outputs,
    inputs,
    stride,
    limit,
    TOP: tl.constexpr,
    NAME: tl.constexpr,
    LIMITED: tl.constexpr,
    BIASED: tl.constexpr,
    WEIGHED: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A product of all experts. NAME: of an activation, in the first product; "" in the second one.

    First: out [most blocks * ROWS, outputs] = activation(gate) * up of row pair / TOP of x [.., inputs], in the order
    of the blocks. The weight holds gate above up.  WEIGHED: x times `weights` [count], rounded.  Places without a pair
    are undefined.
    Second: out [count, outputs], by pair, of x in the order of the blocks, as a descriptor if the weight is one.
    Any grid; each program takes every n-th of the `total` blocks' tiles.
    """
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    blocks, output_tiles = tl.load(total), tl.cdiv(outputs, OUTPUTS)
    for tile in tl.range(tl.program_id(0), blocks * output_tiles, tl.num_programs(0), flatten=FLATTEN):
        block, output_tile = tile_at(tile, blocks, output_tiles, GROUP)
        expert = tl.load(experts + block).to(tl.int64)
        place = block * ROWS + tl.arange(0, ROWS)
        pair = tl.load(pairs + place)
        present = pair < count
        if NAME != "":
            rows = tl.where(present, pair // TOP, 0).to(tl.int64) * stride
        else:
            rows = place.to(tl.int64) * stride
        if WEIGHED:
            factor = tl.load(weights + pair, present, other=0.0).to(x.dtype.element_ty).to(tl.float32)[:, None]
        lane = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
        left = outputs - output_tile * OUTPUTS
        first = expert * outputs + output_tile * OUTPUTS
        if NAME != "":
            first += expert * outputs
        sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
        ups = tl.zeros((OUTPUTS if NAME != "" else 16, ROWS), tl.float32)
        for step in range(0, tl.cdiv(inputs, DEPTH)):
            start = step * DEPTH
            right = _right(x, rows, block * ROWS, start, inputs, DEPTH, DESCRIBED and NAME == "", EVEN)
            if WEIGHED:
                right = (right.to(tl.float32) * factor).to(right.dtype)
            sums = tl.dot(
                _left(weight, first, start, left, inputs, OUTPUTS, DEPTH, DESCRIBED, EVEN),
                right.T,
                sums,
                input_precision="ieee",
            )
            if NAME != "":
                up = _left(weight, first + outputs, start, left, inputs, OUTPUTS, DEPTH, DESCRIBED, EVEN)
                ups = tl.dot(up, right.T, ups, input_precision="ieee")
        inside = lane < outputs
        of_bias = first - output_tile * OUTPUTS + lane
        if BIASED:
            sums += tl.load(bias + of_bias, inside, other=0.0).to(tl.float32)[:, None]
        if NAME != "":
            if BIASED:
                ups += tl.load(bias + outputs + of_bias, inside, other=0.0).to(tl.float32)[:, None]
            sums = gated(sums, ups, limit, LIMITED, NAME)
            at = place
        else:
            at = pair
        at = at.to(tl.int64)[None, :] * outputs + lane[:, None]
        tl.store(out + at, sums.to(out.dtype.element_ty), inside[:, None] & present[None, :])


@triton.jit
def _summed(
    each,
    chosen,
    weights,
    row,
    place,
    inside,
    outputs,
    here,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHED: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """Sum over a row's pairs, in the order of choice: [BLOCK].

    PARTIAL: only pairs whose expert is one of those `here`.
    """
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP):
        pair = row * TOP + choice
        there = inside
        if PARTIAL:
            there = place < tl.where(tl.load(chosen + pair) < here, outputs, 0)
        given = tl.load(each + pair * outputs + place, there, other=0.0).to(tl.float32)
        total += given * tl.load(weights + pair) if WEIGHED else given
    return total


@entry
@triton.jit(do_not_specialize=["here"])
def combine(
    each,
    chosen,
    weights,
    every,
    switch,
    residual,
    out,
    outputs,
    here,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHED: tl.constexpr,
    PARTIAL: tl.constexpr,
    SHARED: tl.constexpr,
    SWITCHED: tl.constexpr,
    ADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out [rows, outputs] = the sum of `each` [rows * TOP, outputs], in the order of choice, times weights.

    PARTIAL: see `_summed`.  Grid (rows, blocks of outputs).
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < outputs
    total = _summed(each, chosen, weights, row, place, inside, outputs, here, TOP, BLOCK, WEIGHED, PARTIAL)
    total = add_shared_output(total, every, switch, residual, row, place, inside, outputs, SHARED, SWITCHED, ADDED)
    tl.store(out + row * outputs + place, total, inside)


@entry
@triton.jit
def combine_norm(
    each,
    weights,
    every,
    switch,
    x,
    norm,
    y,
    outputs,
    stride,
    eps,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHED: tl.constexpr,
    SHARED: tl.constexpr,
    SWITCHED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """x [rows, outputs] += the result of `combine`; y = the RMS norm of x as it is stored, times `norm`.

    Grid (rows,).
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = place < outputs
    total = _summed(each, weights, weights, row, place, inside, outputs, 0, TOP, BLOCK, WEIGHED, False)
    total = add_shared_output(total, every, switch, every, row, place, inside, outputs, SHARED, SWITCHED, False)
    stored = (tl.load(x + row * stride + place, inside, other=0.0).to(tl.float32) + total).to(x.dtype.element_ty)
    tl.store(x + row * stride + place, stored, inside)
    values = stored.to(tl.float32)
    unit = tl.rsqrt(tl.sum(values * values, 0) / outputs + eps)
    tl.store(y + row * outputs + place, values * unit * tl.load(norm + place, inside, other=0.0).to(tl.float32), inside)
