"""The runner for a GPU of a target whose states are wanted.

Without graphs: each step leaves states in its own memory.
"""

from __future__ import annotations

from .cuda_runner import CudaRunner
from .draft_head_runner import CapturesHiddenStates


class HiddenStatesCudaRunner(CapturesHiddenStates, CudaRunner):
    """See both."""


__all__ = ["CudaRunner", "HiddenStatesCudaRunner"]
