"""What stages hand each other: hidden states from one to the next, logits from the last one to rank 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...attention.attention_backend import AttentionBackend
from ...cache.recurrent_state_memory import RecurrentStateMemory
from ...models.decoder import Decoder
from ...step.step_batch import StepBatch
from ..rank_collectives import RankCollectives
from .pipeline_stages import RankPlace

AHEAD = 8  # micro-batches that a stage may be before the next one


class StageRankGroup(RankCollectives):
    """The ranks of one stage, among those of all. rank, ranks: of the stage."""

    def __init__(
        self, rank: int, ranks: int, meeting: Path, stages: int, arrived: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(rank, ranks, meeting, arrived)
        self.place, each = RankPlace.of(rank, ranks, stages), ranks // stages
        groups = [dist.new_group(range(first, first + each)) for first in range(0, ranks, each)] if each > 1 else []
        self.group = groups[self.place.stage] if groups else None
        self.rank, self.ranks = self.place.split[:2]


class PipelineLinks:
    """A rank's ends of what leads from stage to stage: each sends to the one of the same place in the next stage."""

    def __init__(self, ranks: StageRankGroup) -> None:
        self.place, self._sending = ranks.place, deque[tuple[Any, Tensor]]()
        each = ranks.place.split.ranks
        own = ranks.place.stage * each + ranks.rank
        self.before, self.next, self.last = own - each, own + each, (ranks.place.stages - 1) * each

    def send(self, x: Tensor, rank: int) -> None:
        """Returns at once, unless too much is under way already."""
        x = x.clone(memory_format=torch.contiguous_format)
        self._sending.append((dist.isend(raw(x), rank), x))
        while len(self._sending) > AHEAD:
            self._sending.popleft()[0].wait()

    def receive(self, shape: tuple[int, int], dtype: torch.dtype, rank: int) -> Tensor:
        found = torch.empty(shape, dtype=dtype)
        dist.recv(raw(found), rank)
        return found


def raw(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


class StageProgress(NamedTuple):
    """Of a rank since it began: seconds in which it has computed, and `Decoder.expert_counts` of its layers."""

    seconds: float
    expert_counts: list[list[int]]


class PipelineStage:
    """One rank's stage of a model, joined with the others. seconds: that it has computed."""

    def __init__(self, model: Decoder, links: PipelineLinks) -> None:
        self.model, self.links, self.seconds = model, links, 0.0
        self._stage = model.config.stage

    def run(self, batch: StepBatch, attention: AttentionBackend, memory: RecurrentStateMemory | None = None) -> None:
        """Compute a planned batch and hand on its result: at once, while the next one begins."""
        if not self._stage.begins:
            batch.entering = self.links.receive(
                (len(batch.token_ids), self.model.config.hidden_size), self.model.dtype, self.links.before
            )
        wanted, pooled = len(batch.logit_rows), bool(batch.pools)
        batch.keeps = batch.keeps or not self._stage.ends
        with self._timed():
            found = self.model.forward(batch, attention, *(() if memory is None else (memory,)))
        if not self._stage.ends:
            self.links.send(found, self.links.next)
        elif self.links.place.split.rank == 0:
            self._to_first(found if wanted else None, batch.sums if pooled else None)

    def _to_first(self, *found: Tensor | None) -> None:
        for each in found:
            if each is not None:
                self.links.send(each, 0)

    def result(self, batch: StepBatch) -> tuple[Tensor, Tensor | None]:
        """On rank 0: the logits of a batch, [R, vocabulary], float32, and its sums, [pools, hidden], float64."""
        config, last = self.model.config, self.links.last
        count = len(batch.logit_rows)
        logits = (
            self.links.receive((count, config.vocab_size), torch.float32, last) if count else self.model.no_logits()
        )
        return logits, self.links.receive(
            (len(batch.pools), config.hidden_size), torch.float64, last
        ) if batch.pools else None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def done(self) -> StageProgress:
        return StageProgress(self.seconds, self.model.expert_counts())
