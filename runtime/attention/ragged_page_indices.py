"""Concatenates the pages that sequences read, one sequence after the other, for ragged kernels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from ..errors import RuntimeFailure
from ..kernels.attention.page_indices import page_indices
from ..step.step_batch import StepBatch
from .flashinfer_planner import QueryPageRuns
from .pinned_buffers import PinnedBuffers
from .shared_prefix_finder import SharedPrefix


class PageRunRow(IntEnum):
    """Rows of the integers that go to the device in one copy."""

    PAGES = 0  # where each run's pages begin
    LAST = 1  # tokens in its last page
    SEQUENCE = 2
    TOKENS = 3
    QUERIES = 4  # where each run's queries begin
    SKIP = 5  # pages of each decode that are in the shared prefix


@dataclass(frozen=True, slots=True)
class RaggedPageLayout:
    """The first tokens[r] tokens of sequence sequences[r], for the queries from queries[r] to queries[r + 1]."""

    sequences: np.ndarray
    tokens: np.ndarray
    queries: np.ndarray


class PageRuns:
    """At most `runs` runs at a time, at fixed addresses except the pages, whose buffer grows when it is too small.

    reach: see `page_indices`.
    """

    def __init__(self, page_size: int, runs: int, pages: int, device: torch.device, reach: int = 0) -> None:
        self.page_size, self._device, self._most, self._reach = page_size, device, runs, reach
        width = -(-(runs + 1) // 4) * 4
        self._ints = torch.zeros(len(PageRunRow), width, dtype=torch.int32, device=device)
        self._staging = PinnedBuffers(self._ints.numel(), torch.int32, device)
        self._indices = torch.zeros(pages, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Device memory taken."""
        return self._indices.nbytes + self._ints.nbytes

    def prefills(self, batch: StepBatch, decodes: int) -> QueryPageRuns:
        """All tokens of the sequences after the first `decodes`."""
        queries = np.zeros(len(batch.query_lens) - decodes + 1, np.int32)
        np.cumsum(batch.query_lens[decodes:], out=queries[1:])
        sequences = np.arange(decodes, len(batch.query_lens), dtype=np.int32)
        return self._lay(batch, RaggedPageLayout(sequences, np.array(batch.context_lens[decodes:], np.int32), queries))

    def shared(self, batch: StepBatch, prefix: SharedPrefix) -> tuple[QueryPageRuns, Tensor]:
        """The prefix, seen by one query of each decode; and int32 [decodes], pages of it that each begins with."""
        count = len(prefix.members)
        ints = [np.array(values, np.int32) for values in ([prefix.leader], [prefix.pages * self.page_size], [0, count])]
        runs = self._lay(batch, RaggedPageLayout(*ints), prefix.members * prefix.pages)
        return runs, self._ints[PageRunRow.SKIP, :count]

    def _lay(self, batch: StepBatch, layout: RaggedPageLayout, skip: np.ndarray | None = None) -> QueryPageRuns:
        """Describe the runs on the host, and queue the copy of them and their pages to the device."""
        runs = len(layout.sequences)
        if max(runs, 0 if skip is None else len(skip)) > self._most:
            raise RuntimeFailure(
                f"a step of {len(batch.query_lens)} sequences, but at most {self._most} were announced"
            )
        pages = -(-layout.tokens // self.page_size)
        self._reserve(int(pages.sum()))
        staged = self._staging.take()
        host = staged.view(self._ints.shape)
        self._describe(host.numpy(), layout, pages, skip)
        self._ints.view(-1).copy_(staged, non_blocking=True)
        self._staging.sent()
        self._gather(batch, runs, int(pages.max()))
        return self._runs(host, runs, int(layout.queries[-1]))

    def _describe(self, ints: np.ndarray, layout: RaggedPageLayout, pages: np.ndarray, skip: np.ndarray | None) -> None:
        runs = len(pages)
        ints[PageRunRow.PAGES, 0] = 0
        np.cumsum(pages, out=ints[PageRunRow.PAGES, 1 : runs + 1])
        ints[PageRunRow.LAST, :runs] = layout.tokens - (pages - 1) * self.page_size
        ints[PageRunRow.SEQUENCE, :runs] = layout.sequences
        ints[PageRunRow.TOKENS, :runs] = layout.tokens
        ints[PageRunRow.QUERIES, : runs + 1] = layout.queries
        if skip is not None:
            ints[PageRunRow.SKIP, : len(skip)] = skip

    def _gather(self, batch: StepBatch, runs: int, longest: int) -> None:
        device, ints = batch.device, self._ints
        assert device is not None
        page_indices(
            self._indices,
            ints[PageRunRow.PAGES],
            ints[PageRunRow.SEQUENCE, :runs],
            longest,
            device.rows,
            device.starts,
            device.contexts,
            batch.slots,
            device.table,
            self.page_size,
            self._reach,
        )

    def _runs(self, host: Tensor, runs: int, rows: int) -> QueryPageRuns:
        begins, own, ints = slice(0, runs + 1), slice(0, runs), self._ints
        on_host = host[PageRunRow.QUERIES, begins], host[PageRunRow.PAGES, begins], host[PageRunRow.TOKENS, own]
        return QueryPageRuns(
            on_host,
            ints[PageRunRow.QUERIES, begins],
            ints[PageRunRow.PAGES, begins],
            ints[PageRunRow.LAST, own],
            self._indices,
            rows,
        )

    def _reserve(self, pages: int) -> None:
        if pages > len(self._indices):
            self._indices = torch.zeros(2 * pages, dtype=torch.int32, device=self._device)
