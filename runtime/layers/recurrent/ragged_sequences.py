"""The sequences of a step, concatenated, and how they are divided for scans and convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class RaggedSequences:
    """Sequences of `lens` rows each, end to end. Get one by `of`, so that the layers of a step share its indices."""

    def __init__(self, lens: tuple[int, ...], device: torch.device) -> None:
        self.lens, self.device = lens, device
        self.rows = sum(lens)
        self.single = all(count == 1 for count in lens)
        self._windows: dict[int, ConvolutionWindows] = {}
        self._chunks: dict[int, ScanChunks] = {}

    @staticmethod
    def of(lens: Iterable[int], device: torch.device) -> RaggedSequences:
        return _ragged(tuple(lens), device)

    @cached_property
    def starts(self) -> Tensor:
        """int64 [S + 1], where each sequence begins, and the end."""
        return self._on(np.cumsum([0, *self.lens]))

    @cached_property
    def parts(self) -> SequenceSplit:
        """Sequences of one row, separated from longer ones."""
        lens, starts = np.array(self.lens), _starts(self.lens)
        ones, longer = np.flatnonzero(lens == 1), np.flatnonzero(lens != 1)
        rows = np.concatenate([np.arange(starts[i], starts[i] + lens[i]) for i in longer] or [ones[:0]])
        own = _ragged(tuple(lens[longer].tolist()), self.device)
        return SequenceSplit(self._on(ones), self._on(starts[ones]), self._on(longer), self._on(rows), own)

    def windows(self, width: int) -> ConvolutionWindows:
        """width: tokens that a convolution sees, the row's own among them."""
        if width not in self._windows:
            starts, back = _starts(self.lens), np.arange(1 - width, 1)
            each, owners = np.arange(len(starts)), np.repeat(np.arange(len(starts)), self.lens)
            seen = self._previous_rows(np.arange(self.rows)[:, None] + back, owners, starts, width)
            left = self._previous_rows((starts + self.lens - 1)[:, None] + back[1:], each, starts, width)
            self._windows[width] = ConvolutionWindows(self._on(seen), self._on(left))
        return self._windows[width]

    def _previous_rows(self, rows: np.ndarray, owners: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
        """Rows of sequences, [N, any] with their owners [N], as offsets into the states' rows followed by the
        step's.
        """
        first = starts[owners][:, None]
        states = (owners[:, None] + 1) * (width - 1) + rows - first
        return np.where(rows < first, states, len(self.lens) * (width - 1) + rows)

    def chunks(self, size: int) -> ScanChunks:
        if size not in self._chunks:
            self._chunks[size] = self._cut(size)
        return self._chunks[size]

    def _cut(self, size: int) -> ScanChunks:
        lens, starts = np.array(self.lens), _starts(self.lens)
        order = np.argsort(-lens, kind="stable")
        counts = -(-lens[order] // size)  # chunks of each, falling
        active = [int((counts > step).sum()) for step in range(counts.max(initial=0))]
        firsts = [starts[order[:many]] + step * size for step, many in enumerate(active)]
        ends = [(starts + lens)[order[:many]] for many in active]
        first, end = (np.concatenate(each or [starts[:0]]) for each in (firsts, ends))
        rows = first[:, None] + np.arange(size)
        rows = np.where(rows < end[:, None], rows, self.rows)
        places = np.zeros(self.rows, np.int64)
        places[rows[rows < self.rows]] = np.flatnonzero(rows < self.rows)
        bounds = np.cumsum([0, *active]).tolist()
        steps = list(pairwise(bounds))
        return ScanChunks(self._on(rows), self._on(places), self._on(order), self._on(np.argsort(order)), steps)

    def _on(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self.device, non_blocking=True)


@lru_cache(8)
def _ragged(lens: tuple[int, ...], device: torch.device) -> RaggedSequences:
    return RaggedSequences(lens, device)


def _starts(lens: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *lens])[:-1]


class SequenceSplit(NamedTuple):
    """ones, longer: int64, which sequences they are.  one_rows, longer_rows: int64, their rows.

    own: the concatenation of the longer ones.
    """

    ones: Tensor
    one_rows: Tensor
    longer: Tensor
    longer_rows: Tensor
    own: RaggedSequences


class ConvolutionWindows(NamedTuple):
    """Rows of the states [S * (width - 1)] followed by those of the step, int64.

    seen: [T, width], what each row's convolution sees.  left: [S, width - 1], the state that each sequence leaves.
    """

    seen: Tensor
    left: Tensor


class ScanChunks(NamedTuple):
    """Sequences cut into chunks of equal size, the first chunks of all before the second ones, longest sequences first.

    rows: int64 [N, size], the row at each place, T where there is none.  places: int64 [T], where in [N * size] each
        row is.
    order, back: int64 [S], which sequence is at each place, and where each sequence is.
    steps: of the n-th chunks start and stop; they are those of the first `stop - start` sequences.
    """

    rows: Tensor
    places: Tensor
    order: Tensor
    back: Tensor
    steps: list[tuple[int, int]]

    def taken(self, x: Tensor) -> Tensor:
        """x [T, ...] -> [N, size, ...], zero where there is no row."""
        return torch.cat([x, x.new_zeros(1, *x.shape[1:])])[self.rows]

    def laid(self, x: Tensor) -> Tensor:
        """x [N, size, ...] -> [T, ...]"""
        return x.flatten(0, 1)[self.places]
