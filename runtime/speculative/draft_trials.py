"""Whether drafts pay where steps run ahead of the host: stretches of steps with drafts and without are timed in turns.

A step with draft tokens has to be waited for, and the device waits meanwhile for the host to plan the next one. What
that costs is in no step's own time.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from .draft_length_control import BOUNDS

STRETCH, SETTLES = 16, 2  # steps that are timed together, after those in which the way before is still under way
MARGIN = 1.01  # by how much drafts must be faster
KEPT = 0.75  # weight of what was known when a stretch ends
LEAST, MOST = 4, 64  # stretches before the slower way is tried again: more each time that it is slower again
COST = 0.003  # share of the tokens a second that these tries may take in the end


@dataclass(slots=True)
class TrialStretches:
    """What is known with about so many texts.

    spent: tokens and seconds with drafts and without.  left: stretches before the slower way is tried.

    The first stretch of each way is not counted: what is made and compiled for it is made once.
    """

    spent: dict[bool, tuple[float, float]] = field(default_factory=dict)
    drafting: bool = True
    left: int = 0
    _wait: int = LEAST // 2
    _begun: set[bool] = field(default_factory=set)
    _steps: int = -SETTLES
    _tokens: int = 0
    _seconds: float = 0.0

    @property
    def rates(self) -> dict[bool, float]:
        """Tokens a second, with drafts and without, as far as known."""
        return {drafting: tokens / max(seconds, 1e-9) for drafting, (tokens, seconds) in self.spent.items()}

    def took(self, tokens: int, seconds: float) -> None:
        self._steps += 1
        if self._steps <= 0:
            return
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        if self._steps == STRETCH:
            self._ended()

    def _ended(self) -> None:
        before = self.drafting
        if before in self._begun:
            tokens, seconds = self.spent.get(before, (0.0, 0.0))
            self.spent[before] = KEPT * tokens + self._tokens, KEPT * seconds + self._seconds
        self._begun.add(before)
        self.drafting = self._next()
        self._steps, self._tokens, self._seconds = 0 if self.drafting == before else -SETTLES, 0, 0.0

    def _next(self) -> bool:
        """The way of the next stretch."""
        if len(self.spent) < 2:
            return True not in self.spent
        rates = self.rates
        faster = rates[True] > MARGIN * rates[False]
        if self.drafting != faster:
            loss = 1 - min(1.0, rates[not faster] / rates[faster])
            self._wait = min(MOST, max(LEAST, round(loss / COST)), 2 * self._wait)
            self.left = self._wait
        elif self.left <= 0:  # the slower way has become the faster one
            self.left = self._wait = LEAST
        else:
            self.left -= 1
        return faster if self.left > 0 else not faster


class DraftTrials:
    """Of one engine, apart by how many texts a step has."""

    def __init__(self) -> None:
        self._of: dict[int, TrialStretches] = {}
        self._last = -1

    def drafting(self, texts: int) -> bool:
        """Whether the next step of so many texts may have drafts."""
        return self._for(bisect_left(BOUNDS, texts)).drafting

    def took(self, texts: int, tokens: int, seconds: float) -> None:
        """A turn in which so many texts grew by so many tokens, chosen, drafted and forced ones, took so long.

        texts: 0 for a turn of another kind, as where prompts are computed.
        """
        place = bisect_left(BOUNDS, texts) if texts else -1
        if place == self._last and texts:  # a turn may end the step before
            self._for(place).took(tokens, seconds)
        self._last = place

    def _for(self, place: int) -> TrialStretches:
        return self._of.setdefault(place, TrialStretches())
