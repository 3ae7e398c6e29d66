"""How long a draft model's own steps take, and how many of them are worth what they give."""

from __future__ import annotations

from bisect import bisect_left

from ..sequences.draft_tokens import DraftSource
from .draft_length_control import BOUNDS, PROBE, DraftLengthControl

CHAIN = 8  # tokens that a draft model drafts at most
SOURCE = DraftSource("model")
LONGER, SHORTER = 0.1, 0.5  # weight of a new time that is longer, or shorter, than expected
ROUNDS = 100  # over which the time of catching up is spread


class DraftModelTiming:
    """Times in seconds. The target's steps and how often draft tokens are kept are the control's.

    probing: drafts are off, and one sequence is drafted for to see whether they would pay by now.
    """

    def __init__(self, control: DraftLengthControl | None) -> None:
        self.control, self.probing = control, False
        self._steps: dict[int, float] = {}  # of the draft model, by class of sequences
        self._catch_up = 0.0  # spent catching up lately
        self._refused = 0

    def length(self, rows: int, asking: int) -> int:
        """How many tokens to draft for each of `asking` sequences in a step of so many rows; 0: none."""
        if self.control is None:
            return CHAIN
        without, survival = self.control.seconds(rows, rows), self.control.survival(SOURCE, CHAIN)
        best, taken, gain = rows / without, 0, 0.0
        for length in range(1, CHAIN + 1):
            gain += survival[length - 1]
            # more rows take no less, whatever was measured
            verified = max(without, self.control.seconds(rows, rows + asking * length))
            seconds = verified + length * self._step(asking) + self._catch_up / ROUNDS
            if (rate := (rows + asking * gain) / seconds) > best:
                best, taken = rate, length
        return taken or self._refuse()

    def gain(self) -> float:
        """Tokens that are expected of a whole chain."""
        return float(CHAIN) if self.control is None else sum(self.control.survival(SOURCE, CHAIN))

    def stepped(self, sequences: int, seconds: float) -> None:
        place = bisect_left(BOUNDS, sequences)
        known = self._steps.get(place, seconds)
        self._steps[place] = known + (LONGER if seconds > known else SHORTER) * (min(seconds, 3 * known) - known)

    def end_draft_round(self, caught_up: float) -> None:
        """caught_up: seconds of the round that went into tokens that were there already."""
        self._catch_up += caught_up - self._catch_up / ROUNDS

    def probed(self) -> None:
        self.probing = False

    def _refuse(self) -> int:
        """Once in a while a short chain all the same."""
        self._refused += 1
        self._catch_up -= self._catch_up / ROUNDS
        if self._refused >= PROBE:
            self._refused, self.probing = 0, True
        return CHAIN // 2 if self.probing else 0

    def _step(self, sequences: int) -> float:
        """Measured, or that of the nearest class that was; 0: not known, so it is tried."""
        place = bisect_left(BOUNDS, sequences)
        return self._steps[min(self._steps, key=lambda other: abs(other - place))] if self._steps else 0.0
