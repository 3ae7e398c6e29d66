"""A growable row of int32: the tokens of a sequence, or the KV slots that hold them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int32]


class IntRow:
    """Append at the end, cut at the end, read as a numpy view (never copied)."""

    __slots__ = ("_data", "_length")

    def __init__(self, values: ArrayLike = ()) -> None:
        self._data: Ints = np.array(values, dtype=np.int32)
        self._length = len(self._data)

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> Ints:
        """int32 [len], a view that is valid until the next append."""
        return self._data[: self._length]

    def append(self, value: int) -> None:
        self._reserve(self._length + 1)
        self._data[self._length] = value
        self._length += 1

    def extend(self, values: ArrayLike) -> None:
        added = np.asarray(values, dtype=np.int32)
        self._reserve(self._length + len(added))
        self._data[self._length : self._length + len(added)] = added
        self._length += len(added)

    def truncate(self, length: int) -> None:
        self._length = min(self._length, length)

    def _reserve(self, length: int) -> None:
        if length > len(self._data):
            grown = np.empty(max(64, length, 2 * len(self._data)), dtype=np.int32)
            grown[: self._length] = self.array
            self._data = grown
