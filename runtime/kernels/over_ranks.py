"""Sums over ranks whose GPUs reach each other's memory: each rank pushes its part to all others, and adds up what came, in one kernel.

A row of a rank's room is written by one other rank and read by the owner. A number beside it, its turn, says which call it is of. Rows of
even and odd turns lie apart: a rank that is in its turn t has heard of turn t - 1 of all others, so that these have read what came in t - 2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .ahead import entry
from .norm import _normalised, block_of

PROGRAMS = 264  # at most: all of them must run at the same time on the card


class Rooms(NamedTuple):
    """One rank's view of the memory that all ranks write to.

    places, turns: int64 [ranks], addresses of each rank's room, [2, ranks, rows, width] of the type of what is summed, and of the turns of its
    rows, int32 [ranks, rows], zero at first.  counted: int32 [rows], the turns of this rank's own calls.  width: the most numbers of a row.
    """

    rank: int
    ranks: int
    places: Tensor
    turns: Tensor
    counted: Tensor
    width: int


@triton.jit
def _reached(turn, wanted):
    return tl.atomic_add(turn, 0, sem="acquire", scope="sys") - wanted >= 0


@triton.jit
def _row_over_ranks(
    part, places, turns, counted, row, rows, width, columns, inside, RANK: tl.constexpr, RANKS: tl.constexpr
):  # fmt: skip
    """The sum of all ranks' rows, float32 [BLOCK], in the order of the ranks. part: this rank's, [BLOCK]."""
    kind: tl.constexpr = tl.pointer_type(part.dtype)
    turn = tl.load(counted + row) + 1
    side = (turn & 1).to(tl.int64) * RANKS
    for other in tl.static_range(RANKS):
        if other != RANK:
            room = tl.multiple_of(tl.load(places + other), 16).to(kind)
            tl.store(room + ((side + RANK) * rows + row) * width + columns, part, inside)
    tl.debug_barrier()
    for other in tl.static_range(RANKS):
        if other != RANK:
            theirs = tl.load(turns + other).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(theirs + RANK * rows + row, turn, sem="release", scope="sys")
    tl.store(counted + row, turn)
    total = tl.zeros_like(part.to(tl.float32))
    own = tl.multiple_of(tl.load(places + RANK), 16).to(kind)
    heard = tl.load(turns + RANK).to(tl.pointer_type(tl.int32))
    for other in tl.static_range(RANKS):
        if other == RANK:
            total += part.to(tl.float32)
        else:
            while not _reached(heard + other * rows + row, turn):
                pass
            tl.debug_barrier()
            total += tl.load(own + ((side + other) * rows + row) * width + columns, inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    return total


@entry
@triton.jit
def _sum(
    parts, out, places, turns, counted, part_stride, count, size, rows, width,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        at = tl.full((), 0, tl.int64) + row
        part = tl.load(parts + at * part_stride + columns, inside, other=0.0)
        total = _row_over_ranks(part, places, turns, counted, at, rows, width, columns, inside, RANK, RANKS)
        tl.store(out + at * size + columns, total, inside)


@entry
@triton.jit
def _sum_add_norm(
    parts, states, weights, out, places, turns, counted, part_stride, stride, count, size, rows, width, eps,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What is normalised is the sum as it is stored, rounded; the sum over ranks is rounded before, as if it were stored too."""
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        at = tl.full((), 0, tl.int64) + row
        part = tl.load(parts + at * part_stride + columns, inside, other=0.0)
        place = states + at * stride + columns
        x = tl.load(place, inside, other=0.0).to(tl.float32)
        total = _row_over_ranks(part, places, turns, counted, at, rows, width, columns, inside, RANK, RANKS)
        stored = (x + total.to(part.dtype).to(tl.float32)).to(states.dtype.element_ty)
        tl.store(place, stored, inside)
        tl.store(out + at * size + columns, _normalised(stored.to(tl.float32), weights, columns, inside, size, eps), inside)


def sum_over_ranks(part: Tensor, rooms: Rooms) -> Tensor:
    """part: [T, size] of this rank, rows contiguous -> the sum of all ranks' parts in their order, added in float32; the same bits on all of them.

    All ranks call it at the same place of one stream each, with parts of the same shape and type.
    """
    out = torch.empty_like(part, memory_format=torch.contiguous_format)
    size, block, warps = part.shape[1], *block_of(part.shape[1])
    for rows, made in _calls(part, out, rooms):
        _sum[(min(len(rows), PROGRAMS),)](
            rows, made, rooms.places, rooms.turns, rooms.counted, rows.stride(0), len(rows), size, len(rooms.counted), rooms.width,
            RANK=rooms.rank, RANKS=rooms.ranks, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return out


def sum_add_norm(x: Tensor, part: Tensor, weight: Tensor, eps: float, rooms: Rooms) -> Tensor:
    """x += the sum of all ranks' parts in place, then as `norm.rms_norm` of x: bits of `sum_over_ranks` and `norm.add_rms_norm`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    size, block, warps = part.shape[1], *block_of(part.shape[1])
    start = 0
    for rows, made in _calls(part, out, rooms):
        states = x[start : start + len(rows)]
        start += len(rows)
        _sum_add_norm[(min(len(rows), PROGRAMS),)](
            rows, states, weight, made, rooms.places, rooms.turns, rooms.counted, rows.stride(0), states.stride(0), len(rows), size,
            len(rooms.counted), rooms.width, eps, RANK=rooms.rank, RANKS=rooms.ranks, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return out


def _calls(part: Tensor, out: Tensor, rooms: Rooms) -> list[tuple[Tensor, Tensor]]:
    """What each call computes: no more rows than a room has."""
    most = len(rooms.counted)
    return list(zip(part.split(most), out.split(most), strict=True)) if len(part) else []
