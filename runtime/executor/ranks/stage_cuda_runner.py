"""The GPU runner of a rank of a stage: a step in micro-batches, with states from the stage before, for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...cache.state_checkpoints import StateCheckpoint, write_slot
from ...kernels.launch.compile_ahead import is_compiling
from ...models.decoder import Decoder
from ...parallel.pp.cuda_pipeline_links import CudaPipelineLinks
from ...step.step_batch import StepBatch
from ..cuda_graphs import CudaGraphPool
from ..logit_rows import logit_rows, pooled_rows
from .micro_batches import FIXED_ON_GPUS, pieces
from .rank_cuda_runner import RankCudaRunner, RankWorkerCudaRunner, RankZeroCudaRunner

if TYPE_CHECKING:
    from ...sequences.sequence_state import ScheduledWork, SequenceState


class StageCudaRunner(RankCudaRunner):
    """links: to the other stages."""

    def __init__(self, *args: Any, links: CudaPipelineLinks, **options: Any) -> None:
        self.links = links
        super().__init__(*args, **options)
        assert isinstance(self.model, Decoder)
        self.stage = self.model.config.stage

    def _mixed_steps(self, pool: CudaGraphPool) -> None:
        """Steps of several tokens are not cut where layers attend: they begin with what another stage sends."""

    def computed(self, work: list[ScheduledWork]) -> Tensor | None:
        """Rank 0: see `CudaRunner.forward`; it is queued once all stages have theirs.

        Others: nothing that anybody reads.
        """
        if is_compiling():
            return super().computed(work)
        self.links.begin()
        parts, begun = (
            pieces(work, self.links.stages, FIXED_ON_GPUS, self.memory is not None),
            {item.seq: item.lo for item in work},
        )
        for part in parts:
            with continuing_sequences([item.seq for item in part if item.lo > begun[item.seq]]):
                self._hand_on(super().computed(part), part)
        self.links.end()
        return self._collected(parts)

    def _hand_on(self, found: Tensor | None, part: list[ScheduledWork]) -> None:
        if found is not None and (not self.stage.ends or logit_rows(part)):
            self.links.post(found)
        if self.stage.ends and self.sums is not None:
            self.links.post(self.sums)

    def _collected(self, parts: list[list[ScheduledWork]]) -> Tensor | None:
        return None

    def _enter(self, batch: StepBatch, tokens: int) -> None:
        batch.keeps = not self.stage.ends
        if self.stage.begins:
            return
        if batch.entering is None:
            batch.entering = torch.zeros(
                len(batch.token_ids), self.model.config.hidden_size, dtype=self.model.dtype, device=self.device
            )
        self.links.take(batch.entering[:tokens])


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


class FirstStageCudaRunner(RankZeroCudaRunner, StageCudaRunner):
    """Of rank 0, in the first stage."""

    def _collected(self, parts: list[list[ScheduledWork]]) -> Tensor | None:
        found = [self.links.result(len(logit_rows(part)), len(pooled_rows(part))) for part in parts]
        self.sums = found[0][1]
        return torch.cat([logits for logits, _ in found]) if len(found) > 1 else found[0][0]


class StageWorkerCudaRunner(RankWorkerCudaRunner, StageCudaRunner):
    """Of another rank."""
