"""Triton kernels that multiply small batches with their experts' matrices, read in place: each matrix is read once.

Pairs of a row and an expert are numbered row * TOP + choice; matrices are in one tensor [experts, outputs, inputs].
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..gemv.gemv_kernels import lane_sums, read_block, read_shared
from ..launch.compile_ahead import entry
from .expert_gemm_kernels import add_shared_output, gated


@triton.jit
def _rounded(values, factor, x, WEIGHED: tl.constexpr):
    """WEIGHED: times `factor`, rounded to the type of x."""
    if WEIGHED:
        values = (values * factor).to(x.dtype.element_ty).to(tl.float32)
    return values


@triton.jit
def _halves(start, expert, inner, ROWS: tl.constexpr):
    """[ROWS, 1], rows of all experts' gates above ups: ROWS / 2 numbers from `start` on, gate and up in turns."""
    lane = tl.arange(0, ROWS)
    return (expert * 2 * inner + tl.minimum(start + lane // 2, inner - 1) + lane % 2 * inner)[:, None]


@entry
@triton.jit(do_not_specialize=["here"])
def gemv_gate_up(
    x,
    weight,
    bias,
    chosen,
    weights,
    out,
    stride,
    inner,
    here,
    limit,
    SIZE: tl.constexpr,
    TOP: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    NAME: tl.constexpr,
    LIMITED: tl.constexpr,
    BIASED: tl.constexpr,
    WEIGHED: tl.constexpr,
    PARTIAL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out [pairs, inner] = activation(gate) * up, where an expert's weight [2 inner, SIZE] holds gate above up.

    A program owns GROUPS times ROWS / 2 numbers of a pair, one group after the other, with the next weights in flight.
    PARTIAL: of the experts that are `here` only; of pairs of others nothing is written.
    Grid (ceil(2 * inner / ROWS / GROUPS), pairs). `gemv_down` may only begin after the wait.
    """
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    EVEN: tl.constexpr = SIZE % BLOCK == 0
    STEPS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    PAIRS: tl.constexpr = ROWS // 2
    pair, k = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    expert, first = tl.load(chosen + pair).to(tl.int64), tl.program_id(0) * (PAIRS * GROUPS)
    if PARTIAL:  # decided when it is compiled, the other when it runs  # noqa: SIM102
        if expert >= here:
            return
    block = read_block(weight, _halves(first, expert, inner, ROWS), k, SIZE, VECTOR, EVEN)
    factor = tl.load(weights + pair)
    if WEIGHED:
        factor = factor.to(x.dtype.element_ty).to(tl.float32)
    x += pair // TOP * stride
    if STEPS == 1:
        held = _rounded(read_shared(x, k, SIZE, EVEN), factor, x, WEIGHED)
    for group in tl.static_range(GROUPS):
        start = first + group * PAIRS
        rows = _halves(start, expert, inner, ROWS)
        sums = tl.zeros([ROWS, BLOCK // VECTOR], tl.float32)
        for step in tl.static_range(STEPS):
            current = block
            if step + 1 < STEPS:
                block = read_block(weight, rows, k + (step + 1) * BLOCK, SIZE, VECTOR, EVEN)
            elif group + 1 < GROUPS:
                block = read_block(weight, _halves(start + PAIRS, expert, inner, ROWS), k, SIZE, VECTOR, EVEN)
            if STEPS == 1:
                values = held
            else:
                values = _rounded(read_shared(x, k + step * BLOCK, SIZE, EVEN), factor, x, WEIGHED)
            sums += lane_sums(current.to(tl.float32) * values, VECTOR)
        y = tl.sum(sums, 1)
        if BIASED:
            y += tl.sum(tl.load(bias + rows).to(tl.float32), 1)
        gate, up = tl.split(tl.reshape(y, [PAIRS, 2]))
        place = start + tl.arange(0, PAIRS)
        tl.store(out + pair * inner + place, gated(gate, up, limit, LIMITED, NAME), place < inner)


@triton.jit
def _of_pairs(weight, rows, k, real, SIZE: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr):
    """Like `read_block`; WHOLE: all rows are real, others are not read."""
    if WHOLE:
        found = read_block(weight, rows, k, SIZE, VECTOR, EVEN)
    else:
        places = tl.max_contiguous(weight + rows * SIZE + k, [1, VECTOR])
        found = tl.load(places, real & (k < SIZE), other=0.0, eviction_policy="evict_first")
    return found


@entry
@triton.jit(do_not_specialize=["here"])
def gemv_down(
    x,
    weight,
    bias,
    chosen,
    weights,
    every,
    switch,
    residual,
    out,
    outputs,
    here,
    SIZE: tl.constexpr,
    TOP: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    BIASED: tl.constexpr,
    WEIGHED: tl.constexpr,
    SHARED: tl.constexpr,
    SWITCHED: tl.constexpr,
    ADDED: tl.constexpr,
    PARTIAL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out [rows, outputs] = the sum over a row's experts of x [pairs, SIZE] times their weights [outputs, SIZE].

    A program owns ROWS outputs of a row and reads those of all its experts at once; LANES: TOP or the power of 2 above
    it.
    WEIGHED: times the router's weights.  PARTIAL: of the experts that are `here` only.  Grid (ceil(outputs / ROWS),
        rows).
    DEPENDENT: after `gemv_gate_up`, which has waited for the selection before it lets this begin: the first weights are
    in flight while it ends.
    """
    EVEN: tl.constexpr = SIZE % BLOCK == 0
    STEPS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    row, lane, k = tl.program_id(1).to(tl.int64), tl.arange(0, LANES * ROWS), tl.arange(0, BLOCK)[None, :]
    choice, start = lane // ROWS, tl.program_id(0) * ROWS
    pairs, real = row * TOP + tl.minimum(choice, TOP - 1), choice < TOP
    expert = tl.load(chosen + pairs).to(tl.int64)
    if PARTIAL:
        real = real & (expert < here)
        expert = tl.where(real, expert, 0)
    rows = expert * outputs + tl.minimum(start + lane % ROWS, outputs - 1)
    block = _of_pairs(weight, rows[:, None], k, real[:, None], SIZE, VECTOR, EVEN, LANES == TOP and not PARTIAL)
    factor = tl.where(real, tl.load(weights + pairs) if WEIGHED else 1.0, 0.0)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    sums = tl.zeros([LANES * ROWS, BLOCK // VECTOR], tl.float32)
    for step in tl.static_range(STEPS):
        current = block
        if step + 1 < STEPS:
            block = _of_pairs(
                weight,
                rows[:, None],
                k + (step + 1) * BLOCK,
                real[:, None],
                SIZE,
                VECTOR,
                EVEN,
                LANES == TOP and not PARTIAL,
            )
        if PARTIAL:
            values = _some(x, pairs[:, None], k + step * BLOCK, SIZE, real[:, None])
        else:
            values = (
                read_shared(x, pairs[:, None] * SIZE + k + step * BLOCK, SIZE, True)
                if EVEN
                else _some(x, pairs[:, None], k + step * BLOCK, SIZE, True)
            )
        sums += lane_sums(current.to(tl.float32) * values, VECTOR)
    y = tl.sum(sums, 1)
    if BIASED:
        y += tl.load(bias + rows).to(tl.float32)
    total = tl.sum(tl.reshape(y * factor, [LANES, ROWS]), 0)
    place = start + tl.arange(0, ROWS)
    inside = place < outputs
    total = add_shared_output(total, every, switch, residual, row, place, inside, outputs, SHARED, SWITCHED, ADDED)
    tl.store(out + row * outputs + place, total, inside)


@triton.jit
def _some(x, pairs, k, SIZE: tl.constexpr, real):
    return tl.load(x + pairs * SIZE + k, real & (k < SIZE), other=0.0).to(tl.float32)
