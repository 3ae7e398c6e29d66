"""Runners of a target whose states are wanted, and of the head that reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..models.decoder import Decoder
from ..models.draft_head import DraftHead
from .eager_runner import EagerRunner
from .runner_protocol import Runner

if TYPE_CHECKING:
    from ..attention.attention_backend import AttentionBackend
    from ..models.transformers_backend import AnyDecoder
    from ..sequences.sequence_state import ScheduledWork


class CapturesHiddenStates:
    """What a runner has besides.

    observe: is given the work of each step, and the states that the model's `capture` kept of it.
    """

    observe: Callable[[list[ScheduledWork], Tensor], None] | None = None
    model: AnyDecoder

    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        logits: Tensor | None = super().forward(work)  # type: ignore[misc]
        model = self.model
        if work and self.observe is not None and isinstance(model, Decoder) and model.capture is not None:
            assert model.capture.newest is not None
            self.observe(work, model.capture.newest)
        return logits


class HiddenStatesRunner(CapturesHiddenStates, EagerRunner):
    """On the CPU."""


class DraftHeadRunner(EagerRunner):
    """given: the states that a step of the head reads.  made: receives those that it ends with.

    target: the target's runner, on whose stream it runs.
    """

    def __init__(
        self,
        head: DraftHead,
        attention: AttentionBackend,
        given: Callable[[list[ScheduledWork]], Tensor],
        made: Callable[[list[ScheduledWork], Tensor], None],
        target: Runner,
    ) -> None:
        super().__init__(head, attention, head.device)  # type: ignore[arg-type]
        self.head, self._given, self._made, self._target = head, given, made, target

    def on_device(self) -> AbstractContextManager[object]:
        return self._target.on_device()

    @torch.inference_mode()
    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        batch = self.build(work)
        self.attention.plan(batch)
        logits, states = self.head.forward(batch, self.attention, self._given(work))
        self._made(work, states)
        return logits
