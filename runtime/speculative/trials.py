"""Whether guesses pay where steps run ahead of the host: stretches of steps with guesses and without are timed in turns.

A step with guesses has to be waited for, and the device waits meanwhile for the host to plan the next one: what that costs is in no step's own time.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from .control import BOUNDS

STRETCH, SETTLES = 16, 2  # steps that are timed together, behind those in which the way before is still under way
MARGIN = 1.01  # by how much guesses must be faster
NEWEST = 0.5  # weight of the newest stretch
LEAST, MOST = 4, 64  # stretches before the slower way is tried again
COST = 0.003  # share of the tokens a second that these tries may take


@dataclass(slots=True)
class Stretches:
    """What is known beside about so many texts. rates: tokens a second, with guesses and without, as far as known.  left: stretches before the slower way is tried."""

    rates: dict[bool, float] = field(default_factory=dict)
    guesses: bool = True
    left: int = 0
    _steps: int = -SETTLES
    _tokens: int = 0
    _seconds: float = 0.0

    def took(self, tokens: int, seconds: float) -> None:
        self._steps += 1
        if self._steps <= 0:
            return
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        if self._steps == STRETCH:
            self._ended(self._tokens / max(self._seconds, 1e-9))

    def _ended(self, rate: float) -> None:
        known = self.rates.get(self.guesses, rate)
        self.rates[self.guesses] = known + NEWEST * (rate - known)
        before, self.guesses = self.guesses, self._next()
        self._steps, self._tokens, self._seconds = 0 if self.guesses == before else -SETTLES, 0, 0.0

    def _next(self) -> bool:
        """The way of the next stretch."""
        if len(self.rates) < 2:
            return not self.guesses
        faster = self.rates[True] > MARGIN * self.rates[False]
        if self.guesses != faster:
            loss = 1 - min(1.0, self.rates[not faster] / self.rates[faster])
            self.left = min(MOST, max(LEAST, round(loss / COST)))
        else:
            self.left -= 1
        return faster if self.left > 0 else not faster


class Trials:
    """Of one engine, apart by how many texts a step has."""

    def __init__(self) -> None:
        self._of: dict[int, Stretches] = {}
        self._last = -1

    def guesses(self, texts: int) -> bool:
        """Whether the next step of so many texts may have guesses."""
        return self._for(bisect_left(BOUNDS, texts)).guesses

    def took(self, texts: int, kept: int, seconds: float) -> None:
        """The turn of a step that gave a token to each of so many texts took so long, and so many guesses were kept.

        texts: 0 for a turn of another kind, as where prompts are computed.
        """
        place = bisect_left(BOUNDS, texts) if texts else -1
        if place == self._last and texts:  # a turn may end the step before
            self._for(place).took(texts + kept, seconds)
        self._last = place

    def _for(self, place: int) -> Stretches:
        return self._of.setdefault(place, Stretches())
