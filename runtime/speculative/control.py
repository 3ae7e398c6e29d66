"""How many drafted tokens a step takes: as many as raise the tokens a second that are expected of it.

Both sides are measured as it goes: what a step of so many rows takes, and how often a drafter's guesses are kept. After TurboSpec's
goodput (Liu et al., 2024, arXiv 2406.14066).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ..sequences.draft import Source

BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # rows of steps that take about as long
FRESH, FASTER, SLOWLY = 0.1, 0.5, 0.05  # weight of the newest time, of one shorter than expected, and of the newest guess
FIRST = {"forced": 0.95, "states": 0.8, "model": 0.7}  # before any was tried; of others by the length of the match
PROBE = 64  # refusals, after which a source, or drafting at all, is tried once more


class Control:
    """Times in seconds."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}  # by class of rows
        self._kept: dict[Source, float] = {}  # share of tries
        self._refused: dict[Source, int] = {}
        self._skipped = 0  # steps in a row

    def took(self, rows: int, seconds: float) -> None:
        """A step of single tokens and drafts took so long."""
        place = bisect_left(BOUNDS, rows)
        known = self._times.get(place) or (self._time(rows) if any(other <= place for other in self._times) else seconds)
        weight = 1.0 if place not in self._times else FRESH if seconds > known else FASTER
        self._times[place] = known + weight * (min(seconds, 3 * known) - known)

    def tried(self, source: Source, drafted: int, kept: int) -> None:
        """Of a draft the first `kept` tokens were chosen; the one behind them, if there was one, was not."""
        share = self.chance(source)
        for hit in [1.0] * kept + [0.0] * (kept < drafted):
            share += SLOWLY * (hit - share)
        self._kept[source] = share

    def chance(self, source: Source) -> float:
        """That a token is kept where those before it are."""
        return self._kept.get(source, FIRST.get(source.drafter, min(0.9, 0.4 + 0.04 * source.length)))

    def seconds(self, rows: int) -> float:
        """What a step of so many rows is expected to take."""
        return self._time(rows)

    def worth(self, rows: int) -> bool:
        """Whether a guess for each of so many rows could pay, if it were as good as the best."""
        best = max(self._kept.values(), default=0.9)
        if self._rate(rows, best * rows, rows) > self._rate(rows, 0.0):
            self._skipped = 0
            return True
        self._skipped = (self._skipped + 1) % PROBE
        return not self._skipped

    def lengths(self, rows: int, drafts: Sequence[tuple[Source, int]]) -> list[int]:
        """How much of each draft (its source, its tokens) a step takes that has so many rows without them."""
        chances = [self.chance(source) for source, _ in drafts]
        steps = sorted(
            ((chance**place, index) for index, (chance, (_, length)) in enumerate(zip(chances, drafts, strict=True)) for place in range(1, length + 1)),
            reverse=True,
        )
        best, taken, expected = self._rate(rows, 0.0), 0, 0.0
        for count, (gain, _) in enumerate(steps, 1):
            expected += gain
            if (rate := self._rate(rows, expected, count)) > best:
                best, taken = rate, count
        lengths = [0] * len(drafts)
        for _, index in steps[:taken]:
            lengths[index] += 1
        return [self._or_probe(source, length, given) for (source, length), given in zip(drafts, lengths, strict=True)]

    def _rate(self, rows: int, more: float, drafted: int = 0) -> float:
        return (rows + more) / self._time(rows + drafted)

    def _time(self, rows: int) -> float:
        """Measured, or that of the next smaller class that was: what is not known is tried. None is smaller: that of the next larger."""
        place = bisect_left(BOUNDS, rows)
        known = [other for other in self._times if other <= place]
        return self._times[max(known)] if known else self._times[min(self._times)] if self._times else 1.0

    def _or_probe(self, source: Source, length: int, given: int) -> int:
        if given or not length:
            self._refused[source] = 0
            return given
        self._refused[source] = self._refused.get(source, 0) + 1
        if self._refused[source] < PROBE:
            return 0
        self._refused[source] = 0
        return length
