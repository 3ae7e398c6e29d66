"""Steps of a pipeline's stages: in micro-batches, with states from the stage before, for the next one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...cache.state_checkpoints import StateCheckpoint, write_slot
from ...kernels.launch.compile_ahead import is_compiling
from ...models.decoder import Decoder
from ...parallel.pp.pipeline_links import StageLinks, StageProgress
from ...step.step_batch import StepBatch
from ..logit_rows import logit_rows, pooled_rows
from .micro_batches import pieces

if TYPE_CHECKING:
    from ...parallel.workers.worker_group import RankGroup
    from ...sequences.sequence_state import ScheduledWork, SequenceState
    from ..runner_protocol import Runner, Steps


class StageSteps:
    """steps: compute a part of a step; their runner calls `enter`.  model: of the stage.  links: to the other stages.

    fixed: see `micro_batches`.  gathers: rank 0, which returns what the last stage has found.
    seconds: that the stage has computed, on a CPU.  parts: that it has computed.
    """

    def __init__(self, steps: Steps, model: Decoder, links: StageLinks, fixed: int, gathers: bool) -> None:
        self._steps, self.model, self.links, self._fixed, self._gathers = steps, model, links, fixed, gathers
        self._stage = model.config.stage
        self.seconds, self.parts = 0.0, 0
        self._entered = 0.0

    def __call__(self, runner: Runner, work: list[ScheduledWork]) -> Tensor | None:
        """Rank 0: see `Runner.forward`; on a GPU it is queued once all stages have theirs.

        Others: nothing that anybody reads.
        """
        if is_compiling():
            return self._steps(runner, work)
        self.links.begin()
        parts, begun = (
            pieces(work, self.links.stages, self._fixed, runner.memory is not None),
            {item.seq: item.lo for item in work},
        )
        for part in parts:
            with continuing_sequences([item.seq for item in part if item.lo > begun[item.seq]]):
                found = self._steps(runner, part)
            self.seconds += time.perf_counter() - self._entered
            assert found is not None
            self.links.post(found)
            if self._stage.ends and runner.sums is not None:
                self.links.post(runner.sums)
        self.links.end()
        self.parts += len(parts)
        return self._gathered(runner, parts) if self._gathers else None

    def _gathered(self, runner: Runner, parts: list[list[ScheduledWork]]) -> Tensor:
        found = [self.links.result(len(logit_rows(part)), len(pooled_rows(part))) for part in parts]
        runner.sums = found[0][1]
        return torch.cat([logits for logits, _ in found]) if len(found) > 1 else found[0][0]

    def enter(self, batch: StepBatch, tokens: int) -> None:
        """See `EnterStage`."""
        batch.keeps = not self._stage.ends
        if not self._stage.begins:
            if batch.entering is None:
                batch.entering = torch.zeros(
                    len(batch.token_ids),
                    self.model.config.hidden_size,
                    dtype=self.model.dtype,
                    device=batch.token_ids.device,
                )
            self.links.take(batch.entering[:tokens])
        self._entered = time.perf_counter()

    def done(self) -> StageProgress:
        return StageProgress(self.seconds, self.model.expert_counts())


@contextmanager
def continuing_sequences(seqs: list[SequenceState]) -> Iterator[None]:
    """Within, these sequences read their states where an earlier part of the same step has left them."""
    kept = [seq.trail for seq in seqs]
    for seq in seqs:
        seq.trail = [StateCheckpoint(seq.computed, write_slot(seq))]
    try:
        yield
    finally:
        for seq, trail in zip(seqs, kept, strict=True):
            seq.trail = trail


class PipelineTimes(NamedTuple):
    """stage_seconds: that each stage has computed, its ranks' mean, as each said last.

    pipeline_seconds: that steps took.
    micro_batches: that these were cut into.
    """

    stage_seconds: list[float]
    pipeline_seconds: float
    micro_batches: int


class PipelineTimer:
    """Steps of a pipeline on CPUs, timed.

    stage: rank 0's own.  layers: of each stage, how many it has.
    """

    def __init__(self, stage: StageSteps, team: RankGroup, layers: list[int]) -> None:
        self._stage, self._team, self._layers = stage, team, layers
        self._width, self._seconds = team.size // len(layers), 0.0

    def __call__(self, runner: Runner, work: list[ScheduledWork]) -> Tensor | None:
        began = time.perf_counter()
        logits = self._stage(runner, work)
        self._seconds += time.perf_counter() - began
        return logits

    def done(self) -> list[StageProgress]:
        """Of each rank, as it said last."""
        return [self._stage.done(), *self._team.signs(StageProgress(0.0, []))]

    def times(self) -> PipelineTimes:
        seconds, width = [each.seconds for each in self.done()], self._width
        return PipelineTimes(
            [sum(seconds[at : at + width]) / width for at in range(0, len(seconds), width)],
            self._seconds,
            self._stage.parts,
        )

    def expert_counts(self) -> list[list[int]]:
        """See `Decoder.expert_counts`, of the layers of all stages, as each said last."""
        found = [each.expert_counts for each in self.done()[:: self._width]]
        return (
            [row for counts, layers in zip(found, self._layers, strict=True) for row in (counts or [[]] * layers)]
            if any(found)
            else []
        )
