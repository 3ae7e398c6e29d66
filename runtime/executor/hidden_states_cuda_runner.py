"""The runner for a GPU of a target whose states are wanted. Without graphs: each step leaves states in memory of its own."""

from __future__ import annotations

from .cuda_runner import CudaRunner
from .head_runner import Watched


class WatchedCudaRunner(Watched, CudaRunner):
    """See both."""


__all__ = ["CudaRunner", "WatchedCudaRunner"]
