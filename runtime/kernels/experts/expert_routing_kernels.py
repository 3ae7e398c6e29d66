"""Triton kernels of routers: the product with the experts' rows in float32, and the selection of a row.

The reference is models/reference/reference_experts.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry

NONE = tl.constexpr(-(2**63))  # a key below those of all numbers
RANKED = tl.constexpr(256)  # experts up to which all are compared with all, by a whole program


@triton.jit
def _keys(values, index, SIZE: tl.constexpr):
    """int64, in the order of values [SIZE]; of equal ones that of the smaller index is larger."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (SIZE - 1 - index)


@triton.jit
def _winner(keys, SIZE: tl.constexpr):
    return SIZE - 1 - (tl.max(keys, 0) & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def _scored(values, SIGMOID: tl.constexpr):
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-values))
    else:
        powers = tl.exp(values - tl.max(values, 0))
        scores = powers / tl.sum(powers, 0)
    return scores


@triton.jit
def _within_groups(
    choice,
    index,
    inside,
    count,
    outside,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TWO: tl.constexpr,
):
    """choice [SIZE], outside of the KEPT best groups set to `outside`."""
    group = index // (count // GROUPS)
    ranked = tl.zeros([SIZE], tl.float32)
    for number in tl.static_range(GROUPS):
        keys = tl.where(inside & (group == number), _keys(choice, index, SIZE), NONE)
        best = _winner(keys, SIZE)
        total = tl.sum(tl.where(index == best, choice, 0.0), 0)
        if TWO:
            second = _winner(tl.where(index == best, NONE, keys), SIZE)
            total += tl.sum(tl.where(index == second, choice, 0.0), 0)
        ranked = tl.where(index == number, total, ranked)
    keys = tl.where(index < GROUPS, _keys(ranked, index, SIZE), NONE)
    kept = index < 0
    for _ in tl.static_range(KEPT):
        best = _winner(keys, SIZE)
        kept = kept | (group == best)
        keys = tl.where(index == best, NONE, keys)
    return tl.where(kept, choice, outside)


@triton.jit
def _near(left, values, jitter):
    """The weight of the best of `left` among those close to it (PhiMoE); rounded as the reference, for equal ties."""
    most = tl.max(left, 0)
    far = tl.div_rn(most - left, tl.maximum(tl.abs(values), most)) > 2 * jitter
    return 1.0 / tl.sum(tl.where(far, 0.0, tl.exp(left - most)), 0)


@triton.jit
def _choose(
    row,
    scores,
    correction,
    chosen,
    weights,
    counts,
    slots,
    count,
    outside,
    floor,
    scale,
    jitter,
    TOP: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
    MIXER: tl.constexpr,
    SIGMOID: tl.constexpr,
    BEST_FIRST: tl.constexpr,
    CORRECTED: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TWO: tl.constexpr,
    NORMALISE: tl.constexpr,
    COUNTED: tl.constexpr,
    SLOTTED: tl.constexpr,
    RANKED: tl.constexpr,
):
    """Of a row of scores [rows, count], which are logits. Whatever they are, TOP different experts are chosen.

    RANKED: each is compared with all others at once, instead of looking for the best TOP times.
    """
    index, lane = tl.arange(0, SIZE), tl.arange(0, LANES)
    inside = index < count
    values = tl.load(scores + row * count + index, inside, other=-float("inf"), cache_modifier=".cg")
    if not (BEST_FIRST or MIXER):
        values = _scored(values, SIGMOID)
    choice = values
    if CORRECTED:
        choice += tl.load(correction + index, inside, other=0.0)
    if GROUPS > 1:
        choice = _within_groups(choice, index, inside, count, outside, SIZE, GROUPS, KEPT, TWO)
    keys = tl.where(inside, _keys(choice, index, SIZE), NONE)
    if RANKED and not MIXER:
        experts, lane = index, tl.sum((keys[None, :] > keys[:, None]).to(tl.int32), 1)
        taken = tl.where(lane < TOP, values, -float("inf"))
    else:
        experts, taken = _best(keys, choice, values, jitter, lane, TOP, LANES, SIZE, MIXER)
    if BEST_FIRST:
        taken = _scored(taken, SIGMOID)
    if NORMALISE:
        taken /= tl.maximum(tl.sum(tl.where(lane < TOP, taken, 0.0), 0), floor)
    wanted = lane < TOP
    tl.store(chosen + row * TOP + lane, experts, wanted)
    tl.store(weights + row * TOP + lane, taken * scale, wanted)
    if COUNTED:
        if SLOTTED:
            wanted = lane < tl.where(tl.load(slots + row) == 0, 0, TOP)
        tl.atomic_add(counts + experts, tl.full([experts.shape[0]], 1, tl.int64), wanted, sem="relaxed")


@triton.jit
def _best(
    keys, choice, values, jitter, lane, TOP: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr, MIXER: tl.constexpr
):
    """The experts of the TOP largest keys in their order, and their values, or for a mixer weights: [LANES]."""
    index = tl.arange(0, SIZE)
    experts = tl.zeros([LANES], tl.int32)
    taken = tl.full([LANES], -float("inf"), tl.float32)
    for place in tl.static_range(TOP):
        best = _winner(keys, SIZE)
        if MIXER:
            weight = _near(choice, values, jitter)
            choice = tl.where(index == best, -float("inf"), choice)
        else:
            weight = tl.sum(tl.where(index == best, values, 0.0), 0)
        experts = tl.where(lane == place, best, experts)
        taken = tl.where(lane == place, weight, taken)
        keys = tl.where(index == best, NONE, keys)
    return experts, taken


@entry
@triton.jit
def choose(
    scores,
    correction,
    chosen,
    weights,
    counts,
    slots,
    count,
    outside,
    floor,
    scale,
    jitter,
    TOP: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
    MIXER: tl.constexpr,
    SIGMOID: tl.constexpr,
    BEST_FIRST: tl.constexpr,
    CORRECTED: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TWO: tl.constexpr,
    NORMALISE: tl.constexpr,
    COUNTED: tl.constexpr,
    SLOTTED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program a row."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    _choose(
        tl.program_id(0).to(tl.int64),
        scores,
        correction,
        chosen,
        weights,
        counts,
        slots,
        count,
        outside,
        floor,
        scale,
        jitter,
        TOP,
        LANES,
        SIZE,
        MIXER,
        SIGMOID,
        BEST_FIRST,
        CORRECTED,
        GROUPS,
        KEPT,
        TWO,
        NORMALISE,
        COUNTED,
        SLOTTED,
        False,
    )


@entry
@triton.jit
def score_rows(
    x,
    norm,
    weight,
    bias,
    normed,
    scores,
    counters,
    correction,
    chosen,
    weights,
    counts,
    slots,
    stride,
    count,
    eps,
    outside,
    floor,
    scale,
    jitter,
    INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    EXPERTS: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    CHOOSING: tl.constexpr,
    TOP: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
    MIXER: tl.constexpr,
    SIGMOID: tl.constexpr,
    BEST_FIRST: tl.constexpr,
    CORRECTED: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    TWO: tl.constexpr,
    NORMALISE: tl.constexpr,
    COUNTED: tl.constexpr,
    SLOTTED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """scores [rows, count] = x weight^T + bias; CHOOSING: the last program of a row to end selects.

    Grid (ceil(count / EXPERTS), rows).
    NORMED: x is first brought to a root mean square of 1 and multiplied with `norm`; `normed` [rows, INPUTS] gets that.
    counters: int32 [rows], zeros, also afterwards.
    """
    row = tl.program_id(1).to(tl.int64)
    expert, k = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS), tl.arange(0, BLOCK)
    inside = k < INPUTS
    rows = tl.load(weight + tl.minimum(expert, count - 1)[:, None] * INPUTS + k[None, :], inside[None, :], other=0.0)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    values = tl.load(x + row * stride + k, inside, other=0.0).to(tl.float32)
    if NORMED:
        values *= tl.rsqrt(tl.sum(values * values, 0) / INPUTS + eps) * tl.load(norm + k, inside, other=0.0).to(
            tl.float32
        )
        rounded = values.to(normed.dtype.element_ty)
        values = rounded.to(tl.float32)
        if tl.program_id(0) == 0:
            tl.store(normed + row * INPUTS + k, rounded, inside)
    y = tl.sum(rows.to(tl.float32) * values[None, :], 1)
    if BIASED:
        y += tl.load(bias + expert, expert < count, other=0.0)
    tl.store(scores + row * count + expert, y, expert < count)
    if CHOOSING:
        tl.debug_barrier()
        if tl.atomic_add(counters + row, 1, sem="acq_rel") == tl.num_programs(0) - 1:
            tl.store(counters + row, 0)
            _choose(
                row,
                scores,
                correction,
                chosen,
                weights,
                counts,
                slots,
                count,
                outside,
                floor,
                scale,
                jitter,
                TOP,
                LANES,
                SIZE,
                MIXER,
                SIGMOID,
                BEST_FIRST,
                CORRECTED,
                GROUPS,
                KEPT,
                TWO,
                NORMALISE,
                COUNTED,
                SLOTTED,
                SIZE <= RANKED,
            )


@entry
@triton.jit(do_not_specialize=["rows"])
def score_tiles(
    x,
    weight,
    bias,
    scores,
    stride,
    rows,
    count,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    DEPTH: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same for ROWS at a time, without a selection. Grid (ceil(count / EXPERTS), ceil(rows / ROWS))."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    expert = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    left = x + row.to(tl.int64)[:, None] * stride
    right = weight + expert[:, None] * INPUTS
    sums = tl.zeros((ROWS, EXPERTS), tl.float32)
    for start in range(0, INPUTS, DEPTH):
        k = (start + tl.arange(0, DEPTH))[None, :]
        values = tl.load(left + k, (row < rows)[:, None] & (k < INPUTS), other=0.0).to(tl.float32)
        weights = tl.load(right + k, (expert < count)[:, None] & (k < INPUTS), other=0.0)
        sums = tl.dot(values, weights.to(tl.float32).T, sums, input_precision=PRECISION)
    if BIASED:
        sums += tl.load(bias + expert, expert < count, other=0.0)[None, :]
    tl.store(
        scores + row.to(tl.int64)[:, None] * count + expert[None, :],
        sums,
        (row < rows)[:, None] & (expert < count)[None, :],
    )
