"""The plain runner of rank 0: what it computes, the other ranks compute with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.attention_backend import AttentionBackend
from ...models.decoder import Decoder
from ...parallel.ep.expert_balance import ExpertBalancer
from ...parallel.step_batch_message import NewPageSlots, batch_message
from ...parallel.workers.worker_group import RankGroup
from ...sequences.sequence_state import ScheduledWork
from ...step.step_batch import StepBatch
from ..draft_head_runner import CapturesHiddenStates
from ..eager_runner import EagerRunner, states_for
from ..sequence_row_map import SequenceRowMap


class RankZeroRunner(EagerRunner):
    """team: the other ranks, which keep the slots of `most` sequences, each in its own row.

    experts: where they are whole on ranks.
    """

    def __init__(self, *args: Any, team: RankGroup, most: int, experts: ExpertBalancer | None = None) -> None:
        super().__init__(*args)
        self.team, self.experts, self._places = team, experts, SequenceRowMap(most)

    @torch.inference_mode()
    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        """See `EagerRunner`. A step that breaks off here is under way elsewhere: then all ranks end."""
        if not work:
            return None
        batch = self.build(work)
        batch.keeps = self._keeps
        self.attention.plan(batch)
        self.team.step(batch_message(batch, self._news(work, batch)))
        try:
            logits = self.model.forward(batch, self.attention, *states_for(self.memory))
        except BaseException as error:
            self.team.report_failed_step(error)
            raise
        self.sums = batch.sums
        return logits

    @property
    def _keeps(self) -> bool:
        """Whether the states of all tokens are wanted, which all ranks sum up then."""
        capture = self.model.capture if isinstance(self.model, Decoder) else None
        return capture is not None and not capture.layers

    def _news(self, work: list[ScheduledWork], batch: StepBatch) -> list[NewPageSlots]:
        """What the others do not know of the sequences' slots; from now on they know it."""
        rows, fresh = self._places.place([seq for seq, *_ in work])
        for index in fresh:
            work[index].seq.slots.mirrored = 0
        known = [min(seq.slots.mirrored, hi) for seq, _, hi in work]
        news = [
            NewPageSlots(row, count, slots[count:])
            for row, count, slots in zip(rows, known, batch.context_slots, strict=True)
        ]
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


class HiddenStatesRankZeroRunner(CapturesHiddenStates, RankZeroRunner):
    """Of a target whose states are wanted, by a head that rank 0 has whole."""
