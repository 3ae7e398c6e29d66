"""The plain runner of a pipeline's first stage: it cuts steps, sends the parts, and gets the last stage's logits."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...parallel.pp.pipeline_links import PipelineStage, StageProgress
from ...parallel.step_batch_message import batch_message
from ...sequences.sequence_state import ScheduledWork
from ...step.step_batch import StepBatch
from .micro_batches import pieces
from .rank_runner import RankZeroRunner


class PipelineTimes(NamedTuple):
    """stage_seconds: that each stage has computed, its ranks' mean, as each said last.

    pipeline_seconds: that steps took.
    micro_batches: that these were cut into.
    """

    stage_seconds: list[float]
    pipeline_seconds: float
    micro_batches: int


class PipelineRunner(RankZeroRunner):
    """pipeline: rank 0's own stage.  layers: of each stage, how many it has."""

    def __init__(self, *args: Any, pipeline: PipelineStage, layers: list[int], **options: Any) -> None:
        super().__init__(*args, **options)
        self.pipeline, self._stages, self._layers = pipeline, len(layers), layers
        self._seconds, self._micro_batches = 0.0, 0

    @torch.inference_mode()
    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        """See `RankZeroRunner`. Where no logits are wanted it returns before the other stages are done."""
        if not work:
            return None
        began = time.perf_counter()
        _, fresh = self._places.place([seq for seq, *_ in work])
        for index in fresh:
            work[index].seq.slots.mirrored = 0
        parts = [(part, self._batch(part, work)) for part in pieces(work, self._stages, states=self.memory is not None)]
        try:
            logits = self._compute(parts)
        except BaseException as error:
            self.team.report_failed_step(error)
            raise
        self._seconds += time.perf_counter() - began
        self._micro_batches += len(parts)
        return logits

    def _batch(self, part: list[ScheduledWork], whole: list[ScheduledWork]) -> StepBatch:
        """A state that an earlier part of the step has left is read where it is stored."""
        batch, starts = self.build(part), {item.seq: item.lo for item in whole}
        if batch.state_read is not None and batch.state_write is not None:
            later = torch.tensor([item.lo > starts[item.seq] for item in part])
            batch.state_read = torch.where(later, batch.state_write, batch.state_read)
        return batch

    def _compute(self, parts: list[tuple[list[ScheduledWork], StepBatch]]) -> Tensor:
        for part, batch in parts:
            self.attention.plan(batch)
            self.team.step(batch_message(batch, self._news(part, batch)))
            self.pipeline.run(batch, self.attention, self.memory)
        found = [self.pipeline.result(batch) for _, batch in parts]
        self.sums = found[0][1]
        return torch.cat([logits for logits, _ in found]) if len(found) > 1 else found[0][0]

    def done(self) -> list[StageProgress]:
        """Of each rank, as it said last."""
        return [self.pipeline.done(), *self.team.signs(StageProgress(0.0, []))]

    def times(self) -> PipelineTimes:
        seconds = [each.seconds for each in self.done()]
        width = len(seconds) // self._stages
        return PipelineTimes(
            [sum(seconds[at : at + width]) / width for at in range(0, len(seconds), width)],
            self._seconds,
            self._micro_batches,
        )

    def expert_counts(self) -> list[list[int]]:
        """See `Decoder.expert_counts`, of the layers of all stages, as each said last."""
        width = self.pipeline.links.place.split.ranks
        found = [each.expert_counts for each in self.done()[::width]]
        return (
            [row for counts, layers in zip(found, self._layers, strict=True) for row in (counts or [[]] * layers)]
            if any(found)
            else []
        )
