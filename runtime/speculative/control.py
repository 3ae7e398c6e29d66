"""How many drafted tokens a step takes: as many as raise the tokens a second that are expected of it.

Both sides are measured as it goes: what a step of so many rows takes, and how often a drafter's guesses are kept. After TurboSpec's
goodput (Liu et al., 2024, arXiv 2406.14066).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ..sequences.draft import Source

BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # rows of steps that take about as long
FRESH, FASTER = 0.1, 0.2  # weight of the newest time, and of one shorter than expected: a step is slow for many reasons, fast for one
SLOWLY, PRIOR = 0.05, 4  # least weight of the newest guess; tries that what was thought before any counts for
FREE = 8  # rows that are read with the weights of one, until it is measured otherwise
GAIN = 1.03  # expected tokens a second, times those without: what handling guesses takes beside the step is not measured
MEASURED = 4  # steps without guesses, before any are taken beside as many texts
TRIED = (1, 3, 7)  # guesses for each row, of which one must pay for any to be asked for
FIRST = {"forced": 0.95, "states": 0.8, "model": 0.7}  # before any was tried; of others by the length of the match
PROBE = 64  # refusals, after which a source, or drafting at all, is tried once more


@dataclass(slots=True)
class Time:
    """Of steps of about so many rows."""

    rows: float
    seconds: float
    count: int = 0


class Control:
    """Times in seconds."""

    def __init__(self) -> None:
        self._times: dict[int, dict[int, Time]] = {}  # by class of texts, and of rows
        self._asking = 0.0  # what it takes to ask for one draft
        self._kept: dict[tuple[Source, bool], float] = {}  # share of tries, of first tokens and of later ones
        self._tries: dict[tuple[Source, bool], int] = {}
        self._refused: dict[Source, int] = {}
        self._skipped = self._drafted = 0  # steps in a row

    def took(self, texts: int, rows: int, seconds: float) -> None:
        """A step of so many texts and tokens took so long, without the time in which drafts were asked for."""
        times = self._times.setdefault(bisect_left(BOUNDS, texts), {})
        known = times.setdefault(bisect_left(BOUNDS, rows), Time(rows, self._time(texts, rows) if times else seconds))
        weight = max(FRESH if seconds > known.seconds else FASTER, 1 / (known.count + 2))
        known.seconds += weight * (min(seconds, 3 * known.seconds) - known.seconds)
        known.rows += weight * (rows - known.rows)
        known.count += 1

    def asked(self, drafts: int, seconds: float) -> None:
        """So many drafts were asked for in so long."""
        self._asking += FRESH * (seconds / drafts - self._asking)

    def tried(self, source: Source, drafted: int, kept: int) -> None:
        """Of a draft the first `kept` tokens were chosen; the one behind them, if there was one, was not."""
        for place, hit in enumerate([1.0] * kept + [0.0] * (kept < drafted)):
            key = source, place > 0
            share, tries = self.chance(*key), self._tries.get(key, 0)
            self._kept[key] = share + max(SLOWLY, 1 / (tries + PRIOR)) * (hit - share)
            self._tries[key] = tries + 1

    def chance(self, source: Source, later: bool = False) -> float:
        """That the first token is kept, or a later one where those before it are."""
        return self._kept.get((source, later), FIRST.get(source.drafter, min(0.9, 0.4 + 0.04 * source.length)))

    def survival(self, source: Source, length: int) -> list[float]:
        """That each of so many tokens is kept."""
        first, later = self.chance(source), self.chance(source, True)
        return [first * later**place for place in range(length)]

    def seconds(self, texts: int, rows: int) -> float:
        """What a step of so many texts is expected to take that has so many rows."""
        return self._time(texts, rows)

    def measured(self, rows: int) -> bool:
        """Whether it is known what a step of so many rows without guesses takes."""
        place = bisect_left(BOUNDS, rows)
        plain = self._times.get(place, {}).get(place)
        return plain is not None and plain.count >= MEASURED

    def worth(self, rows: int) -> bool:
        """Whether guesses for each of so many rows could pay, if they were as good as the best."""
        if not self.measured(rows):
            return False
        best = max(self._kept.values(), default=0.9)
        pays = (self._rate(rows, sum(best**place for place in range(1, most + 1)) * rows, most * rows, self._asking * rows) for most in TRIED)
        if max(pays) > GAIN * self._rate(rows, 0.0):
            self._skipped = 0
            self._drafted = (self._drafted + 1) % PROBE
            return bool(self._drafted)  # a step without any, to know what it takes
        self._skipped = (self._skipped + 1) % PROBE
        return not self._skipped

    def lengths(self, rows: int, drafts: Sequence[tuple[Source, int]]) -> list[int]:
        """How much of each draft (its source, its tokens) a step takes that has so many rows without them."""
        steps = sorted(((gain, index) for index, draft in enumerate(drafts) for gain in self.survival(*draft)), reverse=True)
        best, taken, expected = GAIN * self._rate(rows, 0.0), 0, 0.0
        for count, (gain, _) in enumerate(steps, 1):
            expected += gain
            if (rate := self._rate(rows, expected, count)) > best:
                best, taken = rate, count
        lengths = [0] * len(drafts)
        for _, index in steps[:taken]:
            lengths[index] += 1
        return [self._or_probe(source, length, given) for (source, length), given in zip(drafts, lengths, strict=True)]

    def _rate(self, rows: int, more: float, drafted: int = 0, asking: float = 0.0) -> float:
        return (rows + more) / (self._time(rows, rows + drafted) + asking)

    def _time(self, texts: int, rows: int) -> float:
        """Between those that were measured. Beyond them it is taken to rise with the rows, once these are more than FREE."""
        known = sorted(self._times.get(bisect_left(BOUNDS, texts), {}).values(), key=lambda time: time.rows)
        if not known:
            return 1.0
        above = next((place for place, time in enumerate(known) if time.rows >= rows), len(known))
        if above == len(known):
            return known[-1].seconds * max(1.0, rows / max(FREE, known[-1].rows))
        low, high = known[max(0, above - 1)], known[above]
        share = (rows - low.rows) / (high.rows - low.rows) if high.rows > low.rows else 1.0
        return low.seconds + max(0.0, share) * (high.seconds - low.seconds)

    def _or_probe(self, source: Source, length: int, given: int) -> int:
        if given or not length:
            self._refused[source] = 0
            return given
        self._refused[source] = self._refused.get(source, 0) + 1
        if self._refused[source] < PROBE:
            return 0
        self._refused[source] = 0
        return length
