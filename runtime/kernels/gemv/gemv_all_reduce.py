"""Products of one row whose sum over ranks is wanted: a program sends what it has computed to all ranks at once, as the messages of `over_ranks`, which
travel while others compute. Then `over_ranks.sum_of_posted` or `join_posted` waits for them, on all ranks, and nothing else that has turns comes between.

The turn is the one that who waits will count: who waited last has ended, so that this rank has heard of all others' turns before, as `over_ranks_kernels` asks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .ahead import entry
from .one_row import best_for, planned
from .one_row_adapted import RowPair, told
from .one_row_kernels import begin_adapted, products, values_at
from .one_row_launch import Launch
from .over_ranks import Rooms
from .over_ranks_kernels import _post, _room


@entry
@triton.jit
def linear_to_all(
    x, weight, scale, bias, places, counted, outputs, rows, words, RANK: tl.constexpr, RANKS: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr, DEPENDENT: tl.constexpr,
    h=None, pairs=None, pair_at=None, WIDTH: tl.constexpr = 0, SECOND: tl.constexpr = 0, THIRD: tl.constexpr = 0,
):  # fmt: skip
    """`one_row_kernels.linear` without a norm and a residual, rounded, into the first row of `over_ranks_kernels.to_all`, this rank's own too."""
    KIND: tl.constexpr = x.dtype.element_ty
    first = tl.program_id(0) * ROWS
    own = tl.minimum(first + tl.arange(0, ROWS), outputs - 1)
    rooms = ()  # type: tuple
    for other in tl.static_range(RANKS):
        rooms = rooms + (_room(places, other),)
    block, of_rank, once = begin_adapted(weight, own, h, pairs, pair_at, outputs, SIZE, BLOCK, VECTOR, DEPENDENT, WIDTH, SECOND, THIRD)
    turn = tl.load(counted) + 1
    added = values_at(bias, own, BIASED)
    y = added + products(block, x, x, weight, scale, own, 0.0, SIZE, BLOCK, VECTOR, False, SCALED)
    if WIDTH > 0:
        y += tl.sum(of_rank.to(tl.float32) * once, 1)
    at = ((turn & 1) * RANKS + RANK) * (tl.full((), 0, tl.int64) + rows) * words + first * KIND.primitive_bitwidth // 32
    for other in tl.static_range(RANKS):
        _post(rooms[other], at, y.to(KIND), turn, outputs - first, ROWS)


def post_linear(y: Tensor, weight: Tensor, rooms: Rooms, bias: Tensor | None = None, launch: Launch | None = None, weight_scale: Tensor | None = None, pair: RowPair | None = None) -> None:
    """`one_row.linear` of plain numbers, [1, out] of this rank, to all. pair: of this rank's part. An even number of outputs where they have 16 bits."""
    plan = planned(weight, weight_scale, launch or best_for(weight), 0)
    sizes = rooms.sizes
    linear_to_all[plan.grid](
        y, *plan.parts, y if bias is None else bias, rooms.places, rooms.counted, weight.shape[0], sizes.most, sizes.words,
        RANK=rooms.rank, RANKS=sizes.ranks, BIASED=bias is not None, **plan.cut, **told(pair),
    )  # fmt: skip
