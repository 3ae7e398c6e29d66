"""The steps of a target whose hidden states are wanted, and of the head that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from ..models.decoder import Decoder
from ..models.draft_head import DraftHead

if TYPE_CHECKING:
    from ..sequences.sequence_state import ScheduledWork
    from .eager_runner import EagerRunner
    from .runner_protocol import Runner, Steps

Observe = Callable[["list[ScheduledWork]", Tensor], None]


class ObservedSteps:
    """observe: is given the work of each step, and the states that the model's `capture` kept of it."""

    def __init__(self, steps: Steps, observe: Observe) -> None:
        self._steps, self._observe = steps, observe

    def __call__(self, runner: Runner, work: list[ScheduledWork]) -> Tensor | None:
        logits = self._steps(runner, work)
        assert isinstance(runner.model, Decoder) and runner.model.capture is not None
        assert runner.model.capture.newest is not None
        self._observe(work, runner.model.capture.newest)
        return logits


class DraftHeadSteps:
    """given: the states that a step of the head reads.  made: receives those that it ends with."""

    def __init__(self, head: DraftHead, given: Callable[[list[ScheduledWork]], Tensor], made: Observe) -> None:
        self._head, self._given, self._made = head, given, made

    def __call__(self, runner: EagerRunner, work: list[ScheduledWork]) -> Tensor:
        batch = runner.build(work)
        runner.attention.plan(batch)
        logits, states = self._head.forward(batch, runner.attention, self._given(work))
        self._made(work, states)
        return logits
