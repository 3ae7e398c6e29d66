"""Sums over ranks whose GPUs reach each other's memory, with the addition and norm behind them, in one kernel. See `over_ranks_kernels`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .norm import block_of
from .one_row_launch import overlaps
from .over_ranks_kernels import PROGRAMS, by_messages, by_owners

MOST = int(PROGRAMS)


@dataclass(frozen=True)
class Sizes:
    """Of the memory that each of so many ranks shares with the others, for rows of `width` numbers of so many bytes each.

    few: rows that travel as messages.  rows: that a call adds up at most.
    """

    ranks: int
    width: int
    itemsize: int
    few: int
    rows: int

    @property
    def words(self) -> int:
        """Messages of a row."""
        return self.width * self.itemsize // 4

    @property
    def slots(self) -> int:
        """Rows that one rank sends another."""
        return self.rows if self.ranks == 2 else -(-self.rows // (self.ranks * MOST)) * MOST

    @cached_property
    def starts(self) -> tuple[int, int, int, int, int]:
        """Bytes up to parts, sums, the turns of both, and the end. Messages come first."""
        row, sides = self.width * self.itemsize, 2 if self.ranks == 2 else 1
        parts = 2 * self.ranks * self.few * self.words * 8
        totals = parts + sides * self.ranks * self.slots * row
        said = totals + (0 if self.ranks == 2 else self.rows * row)
        return parts, totals, said, said + 4 * self.ranks * MOST, said + 8 * self.ranks * MOST

    @property
    def bytes(self) -> int:
        return self.starts[-1]


@dataclass(frozen=True)
class Rooms:
    """One rank's view of that memory.

    places: int64 [ranks], addresses of each rank's, multiples of 16; of zeros at first.  counted: int32 [MOST], the turns of this rank's own calls.
    """

    rank: int
    sizes: Sizes
    places: Tensor
    counted: Tensor

    @cached_property
    def parts(self) -> Tensor:
        return self.places + self.sizes.starts[0]

    def few(self, rows: Tensor) -> bool:
        """Whether they travel as messages."""
        return len(rows) <= self.sizes.few


def suits(width: int, itemsize: int) -> bool:
    """Whether rows of so many numbers travel like this: as whole words of 32 bits."""
    return width * itemsize % 4 == 0


def sum_over_ranks(part: Tensor, rooms: Rooms) -> Tensor:
    """part: [T, size] of this rank, rows contiguous -> the sum of all ranks' parts in their order, added in float32; the same bits on all of them.

    All ranks call it at the same place of one stream each, with parts of the same shape and type.
    """
    out = torch.empty_like(part, memory_format=torch.contiguous_format)
    for rows, made in _calls(part, out, rooms):
        _launch(rows, rows, rows, made, 0.0, rooms, False)
    return out


def sum_add_norm(x: Tensor, part: Tensor, weight: Tensor, eps: float, rooms: Rooms) -> Tensor:
    """x += the sum of all ranks' parts in place, then as `norm.rms_norm` of x: bits of `sum_over_ranks` and `norm.add_rms_norm`."""
    out, start = torch.empty_like(x, memory_format=torch.contiguous_format), 0
    for rows, made in _calls(part, out, rooms):
        _launch(rows, x[start : start + len(rows)], weight, made, eps, rooms, True)
        start += len(rows)
    return out


def _calls(part: Tensor, out: Tensor, rooms: Rooms) -> Iterator[tuple[Tensor, Tensor]]:
    """What each call computes: no more rows than there is room for."""
    if len(part):
        yield from zip(part.split(rooms.sizes.rows), out.split(rooms.sizes.rows), strict=True)


def _launch(rows: Tensor, states: Tensor, weight: Tensor, out: Tensor, eps: float, rooms: Rooms, normed: bool) -> None:
    sizes, size, overlap = rooms.sizes, rows.shape[1], overlaps(rows.device)
    block, warps = block_of(size)
    told: dict[str, Any] = {
        "RANK": rooms.rank, "RANKS": sizes.ranks, "BLOCK": block, "NORMED": normed, "DEPENDENT": overlap, "num_warps": warps,
    } | ({"launch_pdl": True} if overlap else {})  # fmt: skip
    grid, strides = (min(len(rows), MOST),), (rows.stride(0), states.stride(0), len(rows), size)
    if rooms.few(rows):
        by_messages[grid](rows, states, weight, out, rooms.places, rooms.counted, *strides, sizes.few, sizes.words, eps, **told)
        return
    parts, *others = sizes.starts[:4]
    totals, said, heard = (each - parts for each in others)
    by_owners[grid](rows, states, weight, out, rooms.parts, rooms.counted, *strides, sizes.slots, sizes.width, totals, said, heard, eps, **told)
