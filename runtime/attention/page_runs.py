"""Lays out, once a step, the pages that each sequence reads, one sequence after the other, for ragged kernels."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from ..batch import Batch
from ..errors import RuntimeFailure
from ..kernels.page_indices import page_indices
from .flashinfer_kernel import Runs
from .shared_prefix import SharedPrefix
from .staging import Staging

LEAST_START, LARGEST_START = 1 << 12, 1 << 24  # pages that the buffer has room for at first; more make it grow


class Row(IntEnum):
    """Rows of the integers that go to the device in one copy."""

    PAGES = 0  # where each run's pages begin
    LAST = 1  # tokens in its last page
    FIRST = 2  # the page of its sequence that it begins with
    SEQUENCE = 3
    TOKENS = 4
    QUERIES = 5  # where queries begin: of prefills, or of the one run of a shared prefix


class PageRuns:
    """The runs of a step: one a sequence, and behind them the shared prefix if there is one.

    generation: counts how often the buffers moved; graphs captured before read the old ones.
    """

    def __init__(self, page_size: int, sequences: int, context: int, device: torch.device) -> None:
        self.page_size, self.generation, self._device = page_size, 0, device
        self._most = sequences
        width = -(-(sequences + 2) // 4) * 4
        self._ints = torch.zeros(len(Row), width, dtype=torch.int32, device=device)
        self._staging = Staging(self._ints.numel(), torch.int32, device)
        self._host = self._staging.take().view(self._ints.shape)
        self._one_each = torch.arange(width, dtype=torch.int32)
        self._one_each_device = self._one_each.to(device)
        pages = -(-context // page_size)
        self._indices = self._new_indices(min(max((sequences + 1) * pages, LEAST_START), LARGEST_START))

    @property
    def nbytes(self) -> int:
        """Device memory taken."""
        return self._indices.nbytes + self._ints.nbytes + self._one_each_device.nbytes

    @property
    def first(self) -> torch.Tensor:
        """int32: the page that each sequence's run begins with, above 0 where the shared prefix lies before it."""
        return self._ints[Row.FIRST]

    def lay(self, batch: Batch, decodes: int, prefix: SharedPrefix | None) -> None:
        """Describe the runs on the host, and queue what puts them and their pages on the device."""
        device = batch.device
        assert device is not None
        sequences = len(batch.query_lens)
        if sequences > self._most:
            raise RuntimeFailure(f"a step of {sequences} sequences, but at most {self._most} were announced")
        self._reserve(batch, prefix)
        host = self._staging.take()
        self._host = host.view(self._ints.shape)
        longest = self._describe(self._host.numpy(), batch, decodes, prefix)
        self._ints.view(-1).copy_(host, non_blocking=True)
        self._staging.sent()
        runs = sequences + (prefix is not None)
        page_indices(
            self._indices, self._ints[Row.PAGES], self._ints[Row.FIRST, :runs], self._ints[Row.SEQUENCE], longest,
            device.rows, device.starts, device.contexts, batch.slots, device.table, self.page_size,
        )  # fmt: skip

    def decodes(self, first: int, stop: int) -> Runs:
        """Sequences first .. stop - 1, one query each."""
        places = self._one_each[: stop - first + 1], self._one_each_device[: stop - first + 1]
        return self._runs(first, stop, *places, stop - first)

    def prefills(self, first: int, stop: int, rows: int) -> Runs:
        """Sequences first .. stop - 1, which have `rows` queries in all."""
        width = stop - first + 1
        return self._runs(first, stop, self._host[Row.QUERIES, :width], self._ints[Row.QUERIES, :width], rows)

    def shared(self, sequences: int) -> Runs:
        """The shared prefix, seen by one query of each sequence."""
        return self.prefills(sequences, sequences + 1, sequences)

    def _runs(self, first: int, stop: int, places: torch.Tensor, on_device: torch.Tensor, rows: int) -> Runs:
        pages, own = slice(first, stop + 1), slice(first, stop)
        host = places, self._host[Row.PAGES, pages], self._host[Row.TOKENS, own]
        ints = self._ints
        return Runs(host, on_device, ints[Row.PAGES, pages], ints[Row.LAST, own], self._indices, rows)

    def _describe(self, ints: np.ndarray, batch: Batch, decodes: int, prefix: SharedPrefix | None) -> int:
        """Returns the pages of the longest run."""
        size, count = self.page_size, len(batch.context_lens)
        contexts = np.asarray(batch.context_lens, np.int32)
        pages = -(-contexts // size)
        ints[Row.FIRST, : count + 1] = 0
        if prefix is not None:
            ints[Row.FIRST, : len(prefix.members)] = prefix.members * prefix.pages
        first = ints[Row.FIRST, :count]
        ints[Row.PAGES, 0] = 0
        np.cumsum(pages - first, out=ints[Row.PAGES, 1 : count + 1])
        ints[Row.LAST, :count] = contexts - (pages - 1) * size
        ints[Row.SEQUENCE, :count] = np.arange(count)
        ints[Row.TOKENS, :count] = contexts - first * size
        ints[Row.QUERIES, 0] = 0
        if prefix is None:
            np.cumsum(batch.query_lens[decodes:], out=ints[Row.QUERIES, 1 : count - decodes + 1])
            return int(pages.max())
        ints[Row.QUERIES, 1] = count
        ints[Row.PAGES, count + 1] = ints[Row.PAGES, count] + prefix.pages
        ints[Row.LAST, count], ints[Row.TOKENS, count] = size, prefix.pages * size
        ints[Row.SEQUENCE, count] = prefix.leader
        return max(int((pages - first).max()), prefix.pages)

    def _reserve(self, batch: Batch, prefix: SharedPrefix | None) -> None:
        pages = sum(batch.context_lens) // self.page_size + len(batch.context_lens)
        pages += prefix.pages if prefix else 0
        if pages > len(self._indices):
            self._indices = self._new_indices(2 * pages)
            self.generation += 1

    def _new_indices(self, pages: int) -> torch.Tensor:
        return torch.zeros(pages, dtype=torch.int32, device=self._device)
