"""The GPU's runner of a rank: all ranks take the same plans in the same order, rank 0 says which."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...cache import WindowPages
from ...kernels.launch.compile_ahead import is_compiling, kernels_compiled
from ...parallel.cuda_collectives import CudaCollectives
from ...parallel.ep.expert_balance import ExpertBalancer
from ...parallel.workers.gpu_progress import GpuProgress
from ...parallel.workers.worker_group import RankGroup
from ..cuda_runner import CudaRunner
from ..draft_head_runner import CapturesHiddenStates
from ..gpu_page_table import GpuPageTable, MirroredPageTable
from ..weight_offload import collect_garbage
from .step_plan_message import SequenceMirrors, plan_message

if TYPE_CHECKING:
    from ...attention.attention_backend import AttentionBackend
    from ...sequences.sequence_state import ScheduledWork


class RankCudaRunner(CudaRunner):
    """ranks: with whom it computes. Tokens that were sampled last are rank 0's to tell."""

    cuts_adapted = False

    def __init__(self, *args: Any, ranks: CudaCollectives, **options: Any) -> None:
        self.ranks, self.progress = ranks, GpuProgress(_mark, kernels_compiled)
        super().__init__(*args, **options)

    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        if self.last is not None and (is_compiling() or any(hi > seq.known for seq, _, hi in work)):
            self.ranks.broadcast(self.last)
        logits = self.computed(work) if work else None
        if work and not is_compiling():
            self.progress.launch()
        return logits

    def computed(self, work: list[ScheduledWork]) -> Tensor | None:
        return super().forward(work)

    def _wanted_apart(self, work: list[ScheduledWork]) -> list[int]:
        """Steps of several tokens are computed as they are: what a stage hands on is of all of them."""
        return []


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


class RankZeroCudaRunner(RankCudaRunner):
    """Of rank 0."""

    team: RankGroup

    def __init__(self, *args: Any, team: RankGroup, experts: ExpertBalancer | None = None, **options: Any) -> None:
        self.team, self.experts, self._announced = team, experts, False
        super().__init__(*args, **options)

    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        """See `CudaRunner`. A step that breaks off here is under way elsewhere: then all ranks end."""
        if not (work and not is_compiling()):
            return super().forward(work)
        if not self._announced:
            slots = self._slots(work) if self._adapts(work) else ()
            moved = self.windows.moved() if isinstance(self.windows, WindowPages) else None
            self.team.step(plan_message(work, self.table.rows_of(work), slots, moved))
        try:
            return super().forward(work)
        except BaseException as error:
            self.team.report_failed_step(error)
            raise

    def compiled(self) -> None:
        self.team.compile()

    def begin_warm_up(self) -> None:
        """From now on no step compiles anything for long: one that is not done in time hangs."""
        super().begin_warm_up()
        self.team.watch_steps(self.progress)

    def warm_up(self) -> bool:
        if self._ahead is None:
            return False
        self.team.warm_up()
        self._announced = True  # the others do the same by themselves
        try:
            return super().warm_up()
        finally:
            self._announced = False

    def release(self) -> None:
        self.team.sleep()
        super().release()

    def let_go(self) -> None:
        """On all ranks."""
        self.team.ask("let_go", meanwhile=super().release)
        collect_garbage()

    def restore(self, attention: AttentionBackend) -> None:
        self.team.wake()
        super().restore(attention)

    def close(self) -> None:
        """The others end once nothing waits for them any more."""
        with suppress(RuntimeError):
            self._stream.synchronize()
        self.team.close()
        super().close()


class HiddenStatesRankZeroCudaRunner(CapturesHiddenStates, RankZeroCudaRunner):
    """Of rank 0, of a target whose states are wanted by a head that it has whole.

    Without graphs, see `HiddenStatesCudaRunner`; the states are alike on all ranks.
    """


class RankWorkerCudaRunner(RankCudaRunner):
    """Of another rank. mirrors: represent rank 0's sequences in the plans that it takes."""

    def __init__(self, *args: Any, mirrors: SequenceMirrors, **options: Any) -> None:
        self._mirrors = mirrors
        super().__init__(*args, **options)

    def _new_table(self, max_running: int, context: int, page_size: int) -> GpuPageTable:
        return MirroredPageTable(max_running, context, page_size, self.device, self._mirrors.rows, self.windows)
