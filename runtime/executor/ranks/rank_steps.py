"""Steps of several ranks: rank 0 sends each to the others before it computes it; GPUs say how far they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...cache import WindowPages
from ...kernels.launch.compile_ahead import is_compiling, kernels_compiled
from ...parallel.workers.gpu_progress import GpuProgress
from ...parallel.workers.worker_group import RankGroup
from ..eager_runner import adapter_slots
from ..sequence_row_map import SequenceRowMap
from .step_plan_message import plan_message

if TYPE_CHECKING:
    from ...parallel.cuda_collectives import CudaCollectives
    from ...sequences.sequence_state import ScheduledWork
    from ..cuda_runner import CudaRunner
    from ..eager_runner import EagerRunner
    from ..runner_protocol import Runner, Steps


class BroadcastSteps:
    """Of rank 0. team: the others.  message: the step as they read it; None: they compute it by themselves."""

    def __init__(self, steps: Steps, team: RankGroup, message: Callable[[Any, list[ScheduledWork]], bytes | None]):
        self._steps, self._team, self._message = steps, team, message

    def __call__(self, runner: Runner, work: list[ScheduledWork]) -> Tensor | None:
        """A step that breaks off here is under way elsewhere: then all ranks end."""
        if is_compiling():
            return self._steps(runner, work)
        if (message := self._message(runner, work)) is not None:
            self._team.step(message)
        try:
            return self._steps(runner, work)
        except BaseException as error:
            self._team.report_failed_step(error)
            raise


class EagerMessage:
    """most: sequences whose slots the others keep, each in its own row."""

    def __init__(self, most: int) -> None:
        self._rows = SequenceRowMap(most)

    def __call__(self, runner: EagerRunner, work: list[ScheduledWork]) -> bytes:
        message = plan_message(work, self._rows.rows_of(work), adapter_slots(runner.adapters, work))
        for seq, _, hi in work:
            seq.slots.mirrored = hi
        return message


def cuda_message(runner: CudaRunner, work: list[ScheduledWork]) -> bytes | None:
    """A step for warming up is in every rank's own plan."""
    if runner.idle_step:
        return None
    slots = adapter_slots(runner.adapters, work)
    moved = runner.windows.moved() if isinstance(runner.windows, WindowPages) else None
    return plan_message(work, runner.table.rows_of(work), slots, moved)


class GPURankSteps:
    """Of every rank on a GPU: all take the same plans in the same order.

    ranks: with whom it computes. Tokens that were sampled last are rank 0's to tell.  progress: counts the steps.
    """

    def __init__(self, steps: Steps, ranks: CudaCollectives, progress: GpuProgress) -> None:
        self._steps, self._ranks, self._progress = steps, ranks, progress

    def __call__(self, runner: CudaRunner, work: list[ScheduledWork]) -> Tensor | None:
        if runner.last is not None and (is_compiling() or any(hi > seq.known for seq, _, hi in work)):
            self._ranks.broadcast(runner.last)
        logits = self._steps(runner, work)
        if not is_compiling():
            self._progress.launch()
        return logits


def gpu_progress() -> GpuProgress:
    """Of the steps on the current stream."""
    return GpuProgress(_mark, kernels_compiled)


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event
