"""What stages hand each other: hidden states from one to the next, logits from the last one to rank 0."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ...models.decoder import Decoder
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


class StageLinks(Protocol):
    """A rank's ends of what leads from stage to stage: each sends to the one of the same place in the next stage.

    Ranks of a stage call the same methods in the same order. See `PipelineLinks` and `CudaPipelineLinks`.
    """

    stages: int

    def begin(self) -> None:
        """A step begins."""

    def take(self, out: Tensor) -> None:
        """The hidden states [T, hidden] of the next micro-batch, from the stage before."""

    def end(self) -> None:
        """All micro-batches of the step are taken."""

    def post(self, x: Tensor) -> None:
        """To the next stage, or logits and sums of the last one to rank 0; nothing of no rows."""

    def result(self, rows: int, pools: int) -> tuple[Tensor, Tensor | None]:
        """On rank 0, of a micro-batch: logits [rows, vocabulary], and float64 [pools, hidden]."""
        ...


class PipelineLinks:
    """Between CPUs, by gloo. model: the stage."""

    def __init__(self, ranks: StageRankGroup, model: Decoder) -> None:
        self.stages, self._model, self._sending = ranks.place.stages, model, deque[tuple[Any, Tensor]]()
        each = ranks.place.split.ranks
        own = ranks.place.stage * each + ranks.rank
        self._before, self._last = own - each, (self.stages - 1) * each
        # of the last stage the first rank has the logits
        self._next = own + each if not model.config.stage.ends else 0 if ranks.rank == 0 else None

    def begin(self) -> None:
        """See `StageLinks`: gloo keeps the order."""

    def end(self) -> None:
        """As `begin`."""

    def post(self, x: Tensor) -> None:
        """Returns at once, unless too much is under way already."""
        if self._next is None or not len(x):
            return
        x = x.clone(memory_format=torch.contiguous_format)
        self._sending.append((dist.isend(raw(x), self._next), x))
        while len(self._sending) > AHEAD:
            self._sending.popleft()[0].wait()

    def take(self, out: Tensor) -> None:
        dist.recv(raw(out), self._before)

    def result(self, rows: int, pools: int) -> tuple[Tensor, Tensor | None]:
        """The logits are float32."""
        config = self._model.config
        logits = torch.empty(rows, config.vocab_size)
        sums = torch.empty(pools, config.hidden_size, dtype=torch.float64) if pools else None
        for found in (logits, sums):
            if found is not None and len(found):
                dist.recv(raw(found), self._last)
        return logits, sums


def raw(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


class StageProgress(NamedTuple):
    """Of a rank since it began: seconds in which it has computed, and `Decoder.expert_counts` of its layers."""

    seconds: float
    expert_counts: list[list[int]]
