"""How many tokens the running sequences will still want, so that none is admitted too early or too late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..errors import note_sequence
from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import SequenceState, SequenceStatus

LONGEST = 1 << 17  # tokens that a text without a max_tokens is ever expected to have


class LengthEstimate:
    """Learns how long texts get, so that admission need not assume the worst.

    It learns the share that is used of a max_tokens, and the length of those that only the context bounds.
    """

    def __init__(self) -> None:
        self.share = 0.5
        self.length = 128.0  # tokens

    def remaining(self, seq: SequenceState) -> int:
        op = seq.ops[0]
        if not isinstance(op, Generate):
            return 0
        if op.decoding is None:
            return 1
        limit, made = op.decoding.limit, len(op.decoding.output)
        expected = min(self.length, limit) if op.params.max_tokens is None else self.share * limit
        return max(1, int(expected) - made)

    def expected_length(self, seq: SequenceState) -> int:
        """Tokens of the sequence when its operation is done."""
        try:
            return seq.target + self.remaining(seq)
        except BaseException as error:
            note_sequence(error, seq)
            raise

    def finished(self, made: int, allowed: int, bounded: bool = True) -> None:
        """bounded: by max_tokens, else by the context alone."""
        if bounded:
            self.share += 0.05 * (made / max(1, allowed) - self.share)
        else:
            self.length += 0.05 * (made - self.length)

    def raise_estimate(self) -> None:
        self.share = min(1.0, 1.3 * self.share + 0.05)
        self.length = min(LONGEST, 1.3 * self.length)


class RunsSequences(Protocol):
    """The scheduler, as far as the tokens of running sequences are counted."""

    @property
    def estimate(self) -> LengthEstimate: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def running(self) -> Sequence[SequenceState]: ...


class ReservedTokens:
    """Tokens that the running sequences will still want, kept up while new requests are admitted."""

    def __init__(self, scheduler: RunsSequences) -> None:
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
        if seq.status is SequenceStatus.RUNNING:
            self._tokens += self.of([seq])

    def of(self, seqs: Iterable[SequenceState]) -> int:
        found = 0
        try:
            for seq in seqs:
                found += self._scheduler.estimate.remaining(seq) + max(0, seq.need)
        except BaseException as error:
            note_sequence(error, seq)
            raise
        return found
