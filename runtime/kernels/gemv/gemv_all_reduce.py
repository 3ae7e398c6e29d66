"""Products of one row that start an all-reduce: a program sends its outputs to all ranks at once.

They are messages of `all_reduce`, which travel while others compute. Then `all_reduce.sum_of_posted` or
`add_norm_of_posted` waits for them, on all ranks, with no other turn in between.

The turn is the one that the waiting kernel will count. The kernel that waited last has ended, so this rank has heard
all others' turns before, as `all_reduce_kernels` requires.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..comm.all_reduce import AllReduceBuffers
from ..comm.all_reduce_kernels import _post, _room
from ..launch.compile_ahead import entry
from .gemv import best_for, plan_gemv
from .gemv_kernels import begin, plus_pair, products, values_at
from .gemv_launch import GemvLaunch
from .gemv_lora import GemvLora, describe


@entry
@triton.jit
def linear_to_all(
    x,
    codes,
    meta,
    outer,
    bias,
    places,
    counted,
    outputs,
    rows,
    words,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    FORMAT: tl.constexpr,
    CUT: tl.constexpr,
    BIASED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    PAIR: tl.constexpr = None,
):
    """`gemv_kernels.linear` without a norm and a residual, rounded, into the first row of `all_reduce_kernels.to_all`.

    This rank's own copy is written too.
    """
    KIND: tl.constexpr = x.dtype.element_ty
    first = tl.program_id(0) * CUT.rows
    own = tl.minimum(first + tl.arange(0, CUT.rows), outputs - 1)
    rooms = ()  # type: tuple
    for other in tl.static_range(RANKS):
        rooms = rooms + (_room(places, other),)
    weight = (codes, meta, outer)
    begun, more = begin(weight, own, (h, pairs, pair_at), outputs, FORMAT, CUT, PAIR, DEPENDENT)
    turn = tl.load(counted) + 1
    y = values_at(bias, own, BIASED)
    y = plus_pair(y + products(begun, x, x, weight, own, outputs, 0.0, FORMAT, CUT, False), more, PAIR)
    at = ((turn & 1) * RANKS + RANK) * (tl.full((), 0, tl.int64) + rows) * words + first * KIND.primitive_bitwidth // 32
    for other in tl.static_range(RANKS):
        _post(rooms[other], at, y.to(KIND), turn, outputs - first, CUT.rows)


def post_linear(
    y: Tensor,
    weight: Tensor,
    rooms: AllReduceBuffers,
    bias: Tensor | None = None,
    launch: GemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    pair: GemvLora | None = None,
) -> None:
    """`gemv.linear` of plain numbers, [1, out] of this rank, to all.

    pair: of this rank's part. An even number of outputs where they have 16 bits.
    """
    plan = plan_gemv(weight, weight_scale, launch or best_for(weight), 0)
    sizes = rooms.sizes
    linear_to_all[plan.grid](
        y,
        *plan.parts,
        y if bias is None else bias,
        rooms.places,
        rooms.counted,
        weight.shape[0],
        sizes.most,
        sizes.words,
        RANK=rooms.rank,
        RANKS=sizes.ranks,
        BIASED=bias is not None,
        **plan.cut,
        **describe(pair),
    )
