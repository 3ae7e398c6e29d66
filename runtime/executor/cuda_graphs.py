"""Decode steps as CUDA graphs: one for each size of batch that turns up, captured when it turns up again."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..common.garbage_collection import collector_off
from ..kernels.launch.compile_ahead import is_compiling

log = logging.getLogger("sgl.runtime")

EAGER_RUNS = 1  # of a size before it is captured: they compile its kernels, and a size may never come back
FEW = 4  # running sequences; while more would wait for a capture, a size has to come back more often
EAGER_RUNS_OF_MANY = 16
# without a graph the host launches each kernel: 30 ms for 200 rows with weights of four bits, where the device needs
# less than 14
EAGER_DECODES_OF_MANY = 4
ATTEMPTS = 2  # of a size: what somebody else does with the device may end a capture
FINE = (1, 2, 4, 8, 16)
STEP = 32

T = TypeVar("T")


def sizes_up_to(most: int) -> list[int]:
    """Sizes of graphs for batches of up to `most` sequences: fine where a step is bound by memory, then every 32."""
    return [size for size in FINE if size < most] + list(range(32, most, STEP)) + [most]


def eager_runs_before_capture(running: int, of_many: int = EAGER_RUNS_OF_MANY) -> int:
    """How often a step runs without a graph before it is captured, while so many sequences run."""
    return EAGER_RUNS if running <= FEW else of_many


class CudaGraphPool:
    """Captures graphs that share their memory, since no two of them ever run at the same time.

    One pool serves as long as one of its graphs lives: torch takes no memory for a pool whose last graph is gone.
    seconds: that captures took.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self.seconds = seconds

    def capture(self, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """What `compute` launches, which does not run now, and what it returns.

        On the current stream, which is not the default one; other threads may go on using the device.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_blas_handle()  # a thread's first one cannot be made within a capture
        torch.cuda.current_stream().synchronize()
        started = time.perf_counter()
        try:
            with collector_off():  # it may free pinned memory, whose release is an event on the capturing stream
                return graph, self._captured(graph, compute)
        except Exception:
            self._leave()
            raise
        finally:
            self.seconds += time.perf_counter() - started

    def _captured(self, graph: torch.cuda.CUDAGraph, compute: Callable[[], T]) -> T:
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            return compute()
        finally:
            graph.capture_end()

    def _leave(self) -> None:
        """A failed capture leaves torch's allocator in it, which would free nothing; its pool is not used again."""
        with suppress(RuntimeError):  # it had left already
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        self._pool = torch.cuda.graph_pool_handle()

    def graph_for(self, compute: Callable[[], None]) -> Callable[[], None]:
        """Launches what `compute` launches, by one call."""
        return self.capture(compute)[0].replay


@dataclass(slots=True)
class CapturedGraph:
    graph: torch.cuda.CUDAGraph
    logits: Tensor


class DecodeCudaGraphs:
    """Captures and replays; a graph's logits are overwritten by the next step."""

    def __init__(self, most: int, pool: CudaGraphPool) -> None:
        self.sizes = sizes_up_to(most)
        self._pool = pool
        self._captured: dict[Hashable, CapturedGraph | None] = {}  # None: it cannot be captured
        self._runs: dict[Hashable, int] = {}
        self._failed: dict[Hashable, int] = {}

    def size_for(self, count: int) -> int:
        """The smallest graph size for a batch of `count` sequences."""
        return self.sizes[bisect_left(self.sizes, count)]

    def run(self, key: Hashable, compute: Callable[[], Tensor], running: int = 1) -> Tensor:
        """The logits of `compute`, which launches the same kernels on the same addresses for the same key.

        They stay valid until the next run.  running: sequences that would wait for a capture.
        """
        if is_compiling():
            return compute()
        if key not in self._captured:
            runs = self._runs[key] = self._runs.get(key, 0) + 1
            if runs <= eager_runs_before_capture(running, EAGER_DECODES_OF_MANY):
                return compute()
            self._keep(key, self._capture(key, compute))
        found = self._captured.get(key)
        if found is None:
            return compute()
        found.graph.replay()
        return found.logits

    def _keep(self, key: Hashable, found: CapturedGraph | None) -> None:
        """Or begin to count its runs again."""
        failed = self._failed[key] = self._failed.get(key, 0) + (found is None)
        if found is not None or failed == ATTEMPTS:
            self._captured[key] = found
        else:
            del self._runs[key]

    def _capture(self, key: Hashable, compute: Callable[[], Tensor]) -> CapturedGraph | None:
        try:
            return CapturedGraph(*self._pool.capture(compute))
        except Exception as error:
            log.warning(
                "a decode step %s cannot be captured as a CUDA graph now and runs without: %s",
                key,
                error,
                exc_info=log.isEnabledFor(logging.DEBUG),
            )
            return None

    def __len__(self) -> int:
        return len(self._captured)
