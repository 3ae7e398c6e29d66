"""A growable row of int32: the tokens of a sequence, or the KV slots that hold them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Space = str | tuple[str, str]  # a namespace, or one with the digest of an adapter: within it prefixes are matched
Ints = NDArray[np.int32]


def space_text(space: Space) -> str:
    """For people."""
    return repr(space) if isinstance(space, str) else f"{space[0]!r}, adapter {space[1][:8]}"


class GrowableIntArray:
    """Append at the end, cut at the end, read as a numpy view (never copied).

    length: as len() gives it, for hot loops.
    mirrored: how many of its first values a copy elsewhere has; cutting lowers it, copying raises it.
    """

    __slots__ = ("_data", "length", "mirrored")

    def __init__(self, values: ArrayLike = ()) -> None:
        self._data: Ints = np.array(values, dtype=np.int32)
        self.length = len(self._data)
        self.mirrored = 0

    def __len__(self) -> int:
        return self.length

    @property
    def array(self) -> Ints:
        """int32 [len], a view that is valid until the next append."""
        return self._data[: self.length]

    def append(self, value: int) -> None:
        if self.length == len(self._data):
            self._reserve(self.length + 1)
        self._data[self.length] = value
        self.length += 1

    def extend(self, values: ArrayLike) -> None:
        added = np.asarray(values, dtype=np.int32)
        self._reserve(self.length + len(added))
        self._data[self.length : self.length + len(added)] = added
        self.length += len(added)

    def append_rows(self, values: ArrayLike) -> None:
        """Values after the end that are no part of the row, until the next change of it."""
        length = self.length
        self.extend(values)
        self.length = length

    def put(self, start: int, values: ArrayLike) -> None:
        """Values from `start` to the new end; values between the old end and `start` are undefined."""
        self.end_at(start)
        self.extend(values)

    def end_at(self, length: int) -> None:
        """Where that is after its end, the values between are undefined."""
        self._reserve(length)
        self.length = length

    def reaching(self, length: int) -> Ints:
        """int32 [length], a view as `array`, with what was stored after the end."""
        return self._data[:length]

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)
        self.mirrored = min(self.mirrored, length)

    def _reserve(self, length: int) -> None:
        if length > len(self._data):
            grown = np.empty(max(64, length, 2 * len(self._data)), dtype=np.int32)
            grown[: self.length] = self.array
            self._data = grown
