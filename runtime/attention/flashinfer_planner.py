"""One kernel of flashinfer over runs of pages: planned on the host once a step, run in every layer.

flashinfer's own wrappers are passed by: their `plan` copies what is already in place and walks the lengths one by
one in Python, half a millisecond for 256 sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .backend_protocols import AttentionShape
from .pinned_buffers import PinnedBuffers

SPLIT_ROUNDS = 2  # flashinfer splits keys until this many programs run on each multiprocessor
TILES = (16, 64, 128)  # query rows of a program
SMALL, LARGE = 1 << 20, 8 << 20  # bytes of integers: plans whose size depends on sequences only, and any
ROPE_SCALE, ROPE_THETA = 1.0, 1e4  # unused by kernels without rotary inside, but divided by


@dataclass(frozen=True, slots=True)
class QueryPageRuns:
    """Sequences of queries, each with the run of pages that it sees.

    host: int32 on the CPU: where queries begin [n + 1], where pages begin [n + 1], tokens of each run [n].
    queries, pages: the first two on the device.  last: int32 [n], tokens in each run's last page.
    indices: int32, the pages.  rows: queries in all.
    """

    host: tuple[Tensor, Tensor, Tensor]
    queries: Tensor
    pages: Tensor
    last: Tensor
    indices: Tensor
    rows: int


@dataclass(frozen=True, slots=True)
class FlashInferSetup:
    """What all kernels of a backend have in common. floats: scratch for split keys, one kernel at a time."""

    shape: AttentionShape
    page_size: int
    floats: Tensor
    early_launch: bool

    @property
    def device(self) -> torch.device:
        return self.floats.device


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    setup: FlashInferSetup
    module: Any
    info: Any
    integers: Tensor
    runs: QueryPageRuns
    causal: bool
    window_left: int

    def run(self, q: Tensor, pool: tuple[Tensor, Tensor], scale: float, out: Tensor, lse: Tensor | None = None) -> None:
        """q, out: [rows, query_heads, head_dim].  pool: keys and values [pages, page_size, kv_heads, head_dim].

        lse: float32 [rows, query_heads], filled with logarithms to base 2.
        """
        runs, nothing = self.runs, (None, None, None)
        self.module.paged_run(
            self.setup.floats,
            self.integers,
            self.info,
            q,
            *pool,
            runs.queries,
            runs.pages,
            runs.indices,
            runs.last,
            out,
            lse,
            int(self.causal),
            0,
            self.window_left,
            self.setup.early_launch,
            *nothing,
            *nothing,
            self.setup.shape.softcap or 0.0,
            scale,
            *nothing,
            ROPE_SCALE,
            ROPE_THETA,
            0,
            0,
        )


class KernelPlanner:
    """Plans one kernel at a time; the next plan replaces what the last one wrote, in the order of the stream."""

    def __init__(self, setup: FlashInferSetup, size: int) -> None:
        self.setup = setup
        self.integers = torch.empty(size, dtype=torch.uint8, device=setup.device)
        self._staging = PinnedBuffers(size, torch.uint8, setup.device)

    def plan(
        self, backend: str, module: Any, runs: QueryPageRuns, causal: bool, window: int | None, graph: bool = False
    ) -> PlannedKernel:
        """graph: give kernels that differ in nothing but what they read, as long as rows and sequences stay."""
        shape = self.setup.shape
        window_left = -1 if window is None else window - 1
        split = (-1, False, 0) if backend == "fa2" else ()  # of any size, allowed, with no others at the same time
        info = module.plan(
            self.setup.floats,
            self.integers,
            self._staging.take(),
            *runs.host,
            runs.rows,
            len(runs.last),
            shape.query_heads,
            shape.kv_heads,
            self.setup.page_size,
            graph,
            shape.head_dim,
            shape.head_dim,
            causal,
            window_left,
            *split,
        )
        self._staging.sent()
        return PlannedKernel(self.setup, module, info, self.integers, runs, causal, window_left)


def float_bytes(shape: AttentionShape, sequences: int, processors: int) -> int:
    """Scratch for the partial results of any plan: of prefills, or of a prefix that up to `sequences` queries share.

    Keys are split among as many programs as fill the device; a plan for a graph may split any tile.
    """
    fill = SPLIT_ROUNDS * processors // shape.kv_heads
    rows = max(tile * max(fill, -(-sequences * shape.group // tile)) for tile in TILES)
    return rows * shape.query_heads * (shape.head_dim + 1) * 4 + 4096
