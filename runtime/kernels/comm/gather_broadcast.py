"""Gather to rank 0, and broadcast from rank 0, between GPUs that reach each other's memory: one kernel on each.

See `gather_broadcast_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..launch.programmatic_launch import launched, overlaps
from .gather_broadcast_kernels import PROGRAMS, post, take

MOST, BLOCK, WARPS = int(PROGRAMS), 512, 4  # messages of a block


@dataclass(frozen=True)
class GatherBuffers:
    """One rank's view of the memory that serves one of the two directions.

    most: messages of one rank.  places: int64 [ranks], addresses of each rank's `bytes_for`, multiples of 16; initially
        zeros.
    counted: int32 [ranks, MOST], the turns that were posted to each rank or taken from it; initially zeros.
    """

    rank: int
    ranks: int
    most: int
    places: Tensor
    counted: Tensor

    @staticmethod
    def bytes_for(ranks: int, most: int) -> int:
        return 16 * ranks * most + 4 * ranks * MOST

    def holds(self, rows: int, each: int, itemsize: int) -> bool:
        """Whether so many rows of `each` numbers of one rank fit."""
        return itemsize in (2, 4) and _blocks(rows, each, itemsize) * BLOCK <= self.most


def messages(size: int) -> int:
    """Messages for so many bytes of one rank, in whole blocks; a row ends within one of them
    (`GatherBuffers.holds`).
    """
    return -(-size // (4 * BLOCK)) * BLOCK


def gather(x: Tensor, columns: int, channels: GatherBuffers) -> Tensor:
    """[R, columns] on rank 0, of the ranks' columns concatenated; elsewhere x [R, c].

    All ranks call it at the same place of one stream each, with the same R. Each has ceil(columns / ranks) of the
    columns, or the remaining ones.
    """
    each, rows = -(-columns // channels.ranks), len(x)
    out = x.new_empty(rows, columns) if channels.rank == 0 else x
    if rows and channels.rank == 0:
        take[_programs(x, each), channels.ranks](
            x,
            out,
            channels.places,
            channels.counted,
            x.stride(0),
            rows,
            each,
            columns,
            channels.most,
            **_kernel_arguments(x, channels),
        )
    elif rows:
        post[_programs(x, each), 1](
            x,
            channels.places,
            channels.counted,
            x.stride(0),
            rows,
            each,
            columns,
            channels.most,
            FIRST=0,
            **_kernel_arguments(x, channels),
        )
    return out


def broadcast_from_rank0(x: Tensor, channels: GatherBuffers) -> None:
    """x [n], contiguous, becomes rank 0's x. All ranks call it, see `gather`."""
    row, count = x.view(1, -1), x.numel()
    sizes = channels.places, channels.counted, count, 1, count, count, channels.most
    if count and channels.rank == 0:
        post[_programs(row, count), channels.ranks - 1](row, *sizes, FIRST=1, **_kernel_arguments(x, channels))
    elif count:
        take[_programs(row, count), 1](row, row, *sizes, **_kernel_arguments(x, channels))


def _blocks(rows: int, each: int, itemsize: int) -> int:
    return rows * -(-each * itemsize // (4 * BLOCK))


def _programs(x: Tensor, each: int) -> int:
    return min(MOST, _blocks(len(x), each, x.itemsize))


def _kernel_arguments(x: Tensor, channels: GatherBuffers) -> dict[str, Any]:
    told: dict[str, Any] = {"RANK": channels.rank, "RANKS": channels.ranks, "BLOCK": BLOCK, "num_warps": WARPS}
    return told | launched(overlaps(x.device))
