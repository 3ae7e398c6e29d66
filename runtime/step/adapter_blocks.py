"""Rows of a step by the slots of their adapters, as kernels on a GPU go through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .adapter_rows import NONE, AdapterRows

FEW, MANY = 16, 64  # rows of a block; the latter where there are more than MOST_OF_FEW
MOST_OF_FEW = 512


@dataclass(frozen=True, slots=True)
class AdapterRowBlocks:
    """Rows by slot.

    order: int32 [rows], rows that have adapters, by slot.  table: int32 [blocks, 3], slot, first place in `order` and
    count.
    rows: of a block at most.
    groups: int32, how many slots the rows have, then these, where all rows' blocks are FEW.  group_of: int32, for each
        row the place of its slot there, or NONE.
    """

    order: Tensor
    table: Tensor
    rows: int
    groups: Tensor | None = None
    group_of: Tensor | None = None


def rows_by_slot(slots: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """slots: int32 [rows], below 0 without an adapter -> `order` and `table` of Blocks."""
    order: list[np.ndarray] = [np.zeros(0, np.int32)]
    table: list[tuple[int, int, int]] = []
    place = 0
    for slot in np.unique(slots[slots >= 0]).tolist():
        ours = np.flatnonzero(slots == slot).astype(np.int32)
        table += [(slot, place + first, min(rows, len(ours) - first)) for first in range(0, len(ours), rows)]
        order.append(ours)
        place += len(ours)
    return np.concatenate(order), np.array(table, np.int32).reshape(-1, 3)


def grouped(slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """slots: int32 [rows], below 0 without an adapter -> `groups` and `group_of` of Blocks."""
    found = np.unique(slots[slots >= 0])
    places = np.where(slots >= 0, np.searchsorted(found, slots), NONE)
    return np.concatenate([[len(found)], found]).astype(np.int32), places.astype(np.int32)


class StaticAdapterRows:
    """Rows of a step at fixed addresses.

    rows: of the step.  blocks: that its grid has.  parts: int32, of the device, of `sizes`.
    grouped: they say which slots the rows have, too.
    """

    def __init__(self, rows: int, blocks: int, parts: Sequence[Tensor], grouped: bool = True) -> None:
        self._size, self._blocks = rows, blocks
        none = np.full(rows, NONE, np.int32)
        order, table, *groups = parts
        self.rows = AdapterRows(
            none, none, device={rows: AdapterRowBlocks(order, table.view(-1, 3), FEW, *(groups if grouped else ()))}
        )

    @staticmethod
    def sizes(rows: int, blocks: int) -> list[int]:
        """Of order, table, groups and group_of."""
        return [rows, 3 * blocks, 1 + blocks, rows]

    def arrays(self, slots: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """What belongs into the parts. slots: of the first rows; the others have none."""
        given = np.array(slots, np.int32)
        found = [np.ravel(part) for part in (*rows_by_slot(given, FEW), *grouped(given))]
        whole = [
            np.full(size, fill, np.int32)
            for size, fill in zip(self.sizes(self._size, self._blocks), (0, 0, 0, NONE), strict=True)
        ]
        for into, part in zip(whole, found, strict=True):
            into[: len(part)] = part
        return whole


def blocks_for(slots: Sequence[int], rows: int) -> int:
    """Of the grid of a decode step of so many rows: one of few numbers, so that few graphs serve every mix."""
    counts = np.unique(np.array([slot for slot in slots if slot >= 0]), return_counts=True)[1]
    wanted = int((-(-counts // FEW)).sum())
    return max(1, min(rows, 1 << (wanted - 1).bit_length()))
