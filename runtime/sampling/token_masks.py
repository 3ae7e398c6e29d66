"""Packed token masks to what the sampler adds to logits: 0 where a token is allowed, -inf where it is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.step.device_upload import upload

_POOL_BYTES = 64 << 20


def unpack(row: np.ndarray, width: int) -> np.ndarray:
    """bool [width] from int32 words: column i is bit i % 32 of word i // 32; columns beyond the row are False."""
    return np.unpackbits(_fit(row, width).view(np.uint8), bitorder="little")[:width].view(bool)


def _fit(row: np.ndarray, width: int) -> np.ndarray:
    """The row with exactly the words that `width` columns need."""
    words = (width + 31) // 32
    if len(row) == words:
        return row
    return row[:words] if len(row) > words else np.pad(row, (0, words - len(row)))


def _byte_table() -> Tensor:
    """float32 [256, 8]: the penalties of eight columns for each byte of a mask."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(np.where(bits, np.float32(0), np.float32(-np.inf)))


class PackedMaskPool:
    """Packed rows on a device, uploaded once each and found again by the identity of their arrays.

    The arrays are held so that their identity cannot be reused; a full pool starts over.
    """

    def __init__(self, words: int, device: torch.device, capacity: int | None = None) -> None:
        self._capacity = capacity or min(8192, max(64, _POOL_BYTES // (4 * words)))
        self._rows = torch.empty((0, words), dtype=torch.int32, device=device)
        self._slots: dict[int, int] = {}
        self._held: list[np.ndarray] = []

    @property
    def tensor(self) -> Tensor:
        """int32 [places, words], all rows; a new one when it grew."""
        return self._rows

    def gather(self, rows: Sequence[np.ndarray]) -> Tensor:
        """int32 [n, words]."""
        places = np.array(self.places(rows), np.int64)
        return self._rows.index_select(0, upload(places, self._rows.device))

    def places(self, rows: Sequence[np.ndarray]) -> list[int]:
        """Where in `tensor` the rows are, new ones uploaded now; good until the next call."""
        missing = {id(row): row for row in rows if id(row) not in self._slots}
        if len(self._held) + len(missing) > self._capacity:
            self._slots.clear()
            self._held.clear()
            missing = {id(row): row for row in rows}
        if missing:
            self._upload(list(missing.values()))
        return [self._slots[id(row)] for row in rows]

    def _upload(self, rows: list[np.ndarray]) -> None:
        start, size = len(self._held), len(self._rows)
        self._slots.update((id(row), start + i) for i, row in enumerate(rows))
        self._held += rows
        if len(self._held) > size:
            grown = self._rows.new_empty((max(len(self._held), min(2 * size, self._capacity)), self._rows.shape[1]))
            grown[:size] = self._rows
            self._rows = grown
        fitted = np.stack([_fit(row, 32 * self._rows.shape[1]) for row in rows])
        self._rows[start : len(self._held)] = upload(fitted, self._rows.device)


class MaskExpander:
    """Turns packed rows into float rows; on a device they are kept there packed, on the CPU nothing is kept."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width, self.device = width, device
        words = (width + 31) // 32
        self._free = np.full(words, -1, np.int32)
        self._table = _byte_table()
        self._pool = None if device.type == "cpu" else PackedMaskPool(words, device)

    def expand(self, rows: Sequence[np.ndarray | None]) -> Tensor:
        """float32 [n, width] of 0 and -inf for n packed int32 rows; None allows everything."""
        filled = [self._free if row is None else row for row in rows]
        if self._pool is not None:
            return by_bits(self._pool.gather(filled))[:, : self.width]
        packed = np.stack([_fit(row, self.width) for row in filled])
        return by_bytes(torch.from_numpy(packed), self._table)[:, : self.width]


def by_bytes(packed: Tensor, table: Tensor) -> Tensor:
    """float32 [n, 32 * words] of int32 [n, words] through `table`: the quick way on a CPU."""
    return table.index_select(0, packed.view(torch.uint8).view(-1).int()).view(len(packed), -1)


def by_bits(packed: Tensor) -> Tensor:
    """The same by arithmetic, the logarithm of each bit: the quick way on a GPU."""
    shifts = torch.arange(32, dtype=torch.int32, device=packed.device)
    bits = torch.bitwise_right_shift(packed.unsqueeze(-1), shifts).bitwise_and_(1)
    return bits.float().log_().view(len(packed), -1)
