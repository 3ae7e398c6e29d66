"""How many tokens the running sequences will still want, so that newcomers are admitted neither too early nor too late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..sequences.ops import Generate
from ..sequences.sequence import SequenceState, Status

if TYPE_CHECKING:
    from .scheduler import Scheduler


class LengthEstimate:
    """Learns which share of max_tokens generations use, so that admission need not assume the worst."""

    def __init__(self) -> None:
        self.share = 0.5

    def remaining(self, seq: SequenceState) -> int:
        op = seq.ops[0]
        if not isinstance(op, Generate):
            return 0
        if op.decoding is None:
            return 1
        return max(1, int(self.share * op.decoding.limit) - len(op.decoding.output))

    def finished(self, made: int, allowed: int) -> None:
        self.share += 0.05 * (made / max(1, allowed) - self.share)

    def too_low(self) -> None:
        self.share = min(1.0, 1.3 * self.share + 0.05)


class Claims:
    """Tokens that the running sequences will still want, kept up while newcomers are admitted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._preemptions = -1
        self._tokens = 0

    @property
    def tokens(self) -> int:
        scheduler = self._scheduler
        if self._preemptions != scheduler.preemptions:
            self._preemptions = scheduler.preemptions
            self._tokens = self.of(scheduler.running)
        return self._tokens

    def add(self, seq: SequenceState) -> None:
        if seq.status is Status.RUNNING:
            self._tokens += self.of([seq])

    def of(self, seqs: Iterable[SequenceState]) -> int:
        return sum(self._scheduler.estimate.remaining(seq) + max(0, seq.need) for seq in seqs)
