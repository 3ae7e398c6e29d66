"""Decode steps as CUDA graphs: one for each size of batch that turns up, captured when it turns up again."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger("sgl.runtime")

EAGER_RUNS = 1  # of a size before it is captured: they compile its kernels, and a size may never come back
FINE = (1, 2, 4, 8, 16)
STEP = 32


def sizes_up_to(most: int) -> list[int]:
    """Sizes of graphs for batches of up to `most` sequences: fine where a step is bound by memory, then every 32."""
    return [size for size in FINE if size < most] + list(range(32, most, STEP)) + [most]


@dataclass(slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    logits: Tensor


class DecodeGraphs:
    """Captures and replays; all graphs share one pool of memory, since no two ever run at the same time."""

    def __init__(self, most: int) -> None:
        self.sizes = sizes_up_to(most)
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[Hashable, Captured | None] = {}  # None: it cannot be captured
        self._runs: dict[Hashable, int] = {}

    def size_for(self, count: int) -> int:
        """The smallest graph size for a batch of `count` sequences."""
        return self.sizes[bisect_left(self.sizes, count)]

    def run(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """The logits of `compute`, which launches the same kernels on the same addresses for the same key.

        They stay valid until the next run.
        """
        if key not in self._captured:
            runs = self._runs[key] = self._runs.get(key, 0) + 1
            if runs <= EAGER_RUNS:
                return compute()
            self._captured[key] = self._capture(key, compute)
        found = self._captured[key]
        if found is None:
            return compute()
        found.graph.replay()
        return found.logits

    def _capture(self, key: Hashable, compute: Callable[[], Tensor]) -> Captured | None:
        """On the current stream, which is not the default one; other threads may go on using the device."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream().synchronize()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                logits = compute()
            finally:
                graph.capture_end()
        except Exception as error:
            log.warning("a decode step %s cannot be captured as a CUDA graph and runs without: %s", key, error)
            return None
        return Captured(graph, logits)

    def __len__(self) -> int:
        return len(self._captured)
