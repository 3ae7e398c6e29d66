"""The runners for GPUs of a target whose states are wanted. Without graphs: each step leaves states in memory of its own."""

from __future__ import annotations

from .cuda_runner import CudaRunner
from .head_runner import Watched
from .team_cuda_runner import TeamCudaRunner


class WatchedCudaRunner(Watched, CudaRunner):
    """See both."""


class WatchedTeamCudaRunner(Watched, TeamCudaRunner):
    """Of rank 0, which has the head whole; the states are alike on all ranks."""


__all__ = ["CudaRunner", "TeamCudaRunner", "WatchedCudaRunner", "WatchedTeamCudaRunner"]
