"""All-reduce over ranks whose GPUs reach each other's memory, fused with the addition and norm that follow.

See `all_reduce_kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..launch.programmatic_launch import launched, overlaps
from ..rms_norm import block_of
from .all_reduce_kernels import PROGRAMS, by_owners, of_all, to_all

MOST = int(PROGRAMS)


@dataclass(frozen=True)
class AllReduceSizes:
    """Sizes of the memory that each rank shares with the others, for rows of `width` numbers of so many bytes each.

    few: rows that go to all ranks; with two ranks, all of them do.  rows: that a call adds up at most.
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
    def most(self) -> int:
        """Rows that go to all ranks at most."""
        return self.rows if self.ranks == 2 else self.few

    @property
    def slots(self) -> int:
        """Rows that go from one rank to another that owns them."""
        return 0 if self.ranks == 2 else -(-self.rows // (self.ranks * MOST)) * MOST

    @property
    def start(self) -> int:
        """Bytes before the area for rows that go to owners and come from them."""
        return 2 * self.ranks * self.most * self.words * 8

    @property
    def bytes(self) -> int:
        return self.start + (0 if self.ranks == 2 else (self.ranks * self.slots + self.rows) * self.words * 8)


@dataclass(frozen=True)
class AllReduceBuffers:
    """One rank's view of that memory.

    places: int64 [ranks], addresses of each rank's, multiples of 16; initially zeros.  counted: int32 [MOST], the turns
        of this rank's own calls.
    """

    rank: int
    sizes: AllReduceSizes
    places: Tensor
    counted: Tensor

    @cached_property
    def owned(self) -> Tensor:
        return self.places + self.sizes.start

    def few(self, rows: Tensor) -> bool:
        """Whether they go to all ranks."""
        return len(rows) <= self.sizes.most


def supports(width: int, itemsize: int) -> bool:
    """Whether rows of so many numbers are supported: they must be whole words of 32 bits."""
    return width * itemsize % 4 == 0


def all_reduce_sum(part: Tensor, rooms: AllReduceBuffers) -> Tensor:
    """part: [T, size] of this rank, rows contiguous -> the sum of all ranks' parts in their order, added in float32.

    The bits are the same on all ranks.
    All ranks call it at the same place of one stream each, with parts of the same shape and type.
    """
    out = torch.empty_like(part, memory_format=torch.contiguous_format)
    for rows, made in _calls(part, out, rooms):
        _launch(rows, rows, rows, made, 0.0, rooms, False)
    return out


def sum_add_norm(x: Tensor, part: Tensor, weight: Tensor, eps: float, rooms: AllReduceBuffers) -> Tensor:
    """x += the sum of all ranks' parts in place, then as `norm.rms_norm` of x.

    The bits are those of `all_reduce_sum` and `norm.add_rms_norm`.
    """
    out, start = torch.empty_like(x, memory_format=torch.contiguous_format), 0
    for rows, made in _calls(part, out, rooms):
        _launch(rows, x[start : start + len(rows)], weight, made, eps, rooms, True)
        start += len(rows)
    return out


def sum_of_posted(out: Tensor, rooms: AllReduceBuffers) -> Tensor:
    """out [1, size] becomes the sum of the parts posted by the ranks' products (`gemv_all_reduce`).

    The bits are those of `all_reduce_sum`.
    """
    return _receive_sum(out, out, out, 0.0, rooms, False)


def add_norm_of_posted(x: Tensor, out: Tensor, weight: Tensor, eps: float, rooms: AllReduceBuffers) -> Tensor:
    """x [1, size] += that sum, out becomes the norm of x: see `sum_add_norm`."""
    return _receive_sum(x, out, weight, eps, rooms, True)


def _receive_sum(
    states: Tensor, out: Tensor, weight: Tensor, eps: float, rooms: AllReduceBuffers, normed: bool
) -> Tensor:
    sizes, size = rooms.sizes, out.shape[1]
    of_all[(1,)](
        states,
        weight,
        out,
        rooms.places,
        rooms.counted,
        size,
        sizes.most,
        sizes.words,
        eps,
        **_kernel_arguments(rooms, out, normed),
    )
    return out


def _calls(part: Tensor, out: Tensor, rooms: AllReduceBuffers) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of each call: no more than the buffers hold."""
    if len(part):
        yield from zip(part.split(rooms.sizes.rows), out.split(rooms.sizes.rows), strict=True)


def _launch(
    rows: Tensor, states: Tensor, weight: Tensor, out: Tensor, eps: float, rooms: AllReduceBuffers, normed: bool
) -> None:
    sizes, size, told = rooms.sizes, rows.shape[1], _kernel_arguments(rooms, rows, normed)
    grid, strides = (min(len(rows), MOST),), (rows.stride(0), states.stride(0), len(rows), size)
    if rooms.few(rows):
        to_all[grid](
            rows, states, weight, out, rooms.places, rooms.counted, *strides, sizes.most, sizes.words, eps, **told
        )
    else:
        by_owners[grid](
            rows, states, weight, out, rooms.owned, rooms.counted, *strides, sizes.slots, sizes.words, eps, **told
        )


def _kernel_arguments(rooms: AllReduceBuffers, rows: Tensor, normed: bool) -> dict[str, Any]:
    block, warps = block_of(rows.shape[1])
    told = {"RANK": rooms.rank, "RANKS": rooms.sizes.ranks, "BLOCK": block, "NORMED": normed, "num_warps": warps}
    return told | launched(overlaps(rows.device))
