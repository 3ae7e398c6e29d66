"""The plain runner of rank 0: what it computes, the other ranks compute with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..models.decoder import Decoder
from ..parallel.expert_ranks import ExpertRanks
from ..parallel.step_words import News, to_words
from ..parallel.team import Team
from ..sequences.sequence import Work
from ..step.batch import Batch
from .head_runner import Watched
from .rows import RowMap
from .runner import Runner, states_for


class TeamRunner(Runner):
    """team: the other ranks, which keep the slots of `most` sequences each in a row of its own.  experts: where they lie whole on ranks."""

    def __init__(self, *args: Any, team: Team, most: int, experts: ExpertRanks | None = None) -> None:
        super().__init__(*args)
        self.team, self.experts, self._places = team, experts, RowMap(most)

    @torch.inference_mode()
    def forward(self, work: list[Work]) -> Tensor | None:
        """See `Runner`. A step that breaks off here is under way elsewhere: then all ranks end."""
        if not work:
            return None
        batch = self.build(work)
        batch.keeps = self._keeps
        self.attention.plan(batch)
        self.team.step(to_words(batch, self._news(work, batch)))
        try:
            logits = self.model.forward(batch, self.attention, *states_for(self.memory))
        except BaseException as error:
            self.team.broke_off(error)
            raise
        self.sums = batch.sums
        return logits

    @property
    def _keeps(self) -> bool:
        """Whether the states of all tokens are wanted, which all ranks sum up then."""
        capture = self.model.capture if isinstance(self.model, Decoder) else None
        return capture is not None and not capture.layers

    def _news(self, work: list[Work], batch: Batch) -> list[News]:
        """What the others do not know of the sequences' slots; from now on they know it."""
        rows, fresh = self._places.place([seq for seq, *_ in work])
        for index in fresh:
            work[index].seq.slots.mirrored = 0
        known = [min(seq.slots.mirrored, hi) for seq, _, hi in work]
        news = [News(row, count, slots[count:]) for row, count, slots in zip(rows, known, batch.context_slots, strict=True)]
        for seq, _, hi in work:
            seq.slots.mirrored = hi
        return news

    def release(self) -> None:
        self.team.sleep()
        super().release()

    def restore(self, attention: AttentionBackend) -> None:
        self.team.wake()
        super().restore(attention)

    def close(self) -> None:
        self.team.close()


class WatchedTeamRunner(Watched, TeamRunner):
    """Of a target whose states are wanted, by a head that rank 0 has whole."""
