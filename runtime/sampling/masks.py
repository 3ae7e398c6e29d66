"""Packed token masks kept on the device in the form the sampler adds to logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_POOL_BYTES = 128 << 20
_FREE_ROW = 0


def unpack(row: np.ndarray, width: int) -> np.ndarray:
    """bool [width] from int32 words: column i is bit i % 32 of word i // 32; columns beyond the row are False."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")[:width].view(bool)
    return bits if len(bits) == width else np.pad(bits, (0, width - len(bits)))


class MaskPool:
    """Rows of 0 (allowed) and -inf (not), uploaded once each and found again by the identity of the packed row.

    Holding the packed row keeps its identity from being reused. Row 0 allows everything. When the pool is
    full it starts over; `gather` never asks for more rows than it has.
    """

    def __init__(self, width: int, device: torch.device, rows: int | None = None) -> None:
        self.width, self.device = width, device
        self._capacity = rows or min(4096, max(64, _POOL_BYTES // (4 * width)))
        self._pool = torch.zeros((min(16, self._capacity), width), dtype=torch.float32, device=device)
        self._slots: dict[int, int] = {}
        self._held: list[np.ndarray | None] = [None]

    def gather(self, rows: Sequence[np.ndarray | None]) -> Tensor:
        """float32 [n, width] of 0 and -inf for n packed rows; None allows everything."""
        slots = [_FREE_ROW if row is None else self._slots.get(id(row), -1) for row in rows]
        if -1 in slots:
            if len(self._held) + slots.count(-1) > self._capacity:
                self._restart(1 + len(rows))
            slots = [_FREE_ROW if row is None else self._slot(row) for row in rows]
        return self._pool.index_select(0, torch.tensor(slots, device=self.device))

    def _restart(self, needed: int) -> None:
        self._slots.clear()
        del self._held[1:]
        self._capacity = max(self._capacity, needed)

    def _slot(self, row: np.ndarray) -> int:
        slot = self._slots.get(id(row))
        if slot is None:
            slot = self._slots[id(row)] = len(self._held)
            self._held.append(row)
            self._store(slot, row)
        return slot

    def _store(self, slot: int, row: np.ndarray) -> None:
        if slot >= len(self._pool):
            more = min(len(self._pool), self._capacity - len(self._pool))
            self._pool = torch.cat([self._pool, self._pool.new_zeros((max(more, 1), self.width))])
        values = np.where(unpack(row, self.width), np.float32(0), np.float32(-np.inf))
        self._pool[slot].copy_(torch.from_numpy(values))
