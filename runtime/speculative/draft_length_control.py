"""How many drafted tokens a step takes: as many as raise the tokens a second that are expected of it.

Both sides are measured as it goes: what a step of so many rows takes, and how often a drafter's tokens are kept. After
TurboSpec's goodput (Liu et al., 2024, arXiv 2406.14066).
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..sequences.draft_tokens import ONWARD, DraftSource, Kind

BOUNDS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
)  # rows of steps that take about as long
FRESH, FASTER = (
    0.1,
    0.2,
)  # weight of the newest time, and of one shorter than expected: a step is slow for many reasons, fast for one
SLOWLY, PRIOR = 0.05, 4  # least weight of the newest draft token; tries that the prior counts for
FREE = 8  # rows that are read with the weights of one, until it is measured otherwise
# expected tokens a second, times those without: what handling drafts takes outside of the step is not measured
GAIN = 1.03
MEASURED = 4  # steps without drafts, before any are taken with as many texts
TRIED = (1, 3, 7)  # draft tokens for each row, of which one must pay for any to be asked for
FIRST = {
    "forced": 0.95,
    "states": 0.8,
    "named": 0.6,
    "onward": 0.5,
    "model": 0.7,
}  # before any was tried; of others by the length of the match
PROBE = 64  # refusals, after which a source, or drafting at all, is tried once more
LONG_PROBE = 1024  # the most, where it did not pay again and again
LIKELY = 0.12  # least chance that what a draft goes on with is kept, for which it is looked for
ENOUGH = 64  # drafts that were asked for, before what came of them says whether to ask
REMEMBERED, RECENT = 200, 16  # of which it is the mean, and where it does not pay
RUN = 8  # of them in a row, where asking is tried again
REST, RENEWED = (
    16,
    8,
)  # steps that are neither asked about nor reported, where drafts do not pay; before a trial so many are


@dataclass(slots=True)
class StepTime:
    """Of steps of about so many rows."""

    rows: float
    seconds: float
    count: int = 0


@dataclass(slots=True)
class DraftOutcome:
    """What came of asking for drafts with about so many texts, both as shares of a step that asks for none.

    asked: drafts.  over: of how many it is the mean.  wait: steps before asking is tried again, where it does not pay.
    """

    tokens: float = 0.0
    seconds: float = 0.0
    asked: int = 0
    over: int = 0
    wait: int = PROBE
    turn: int = 0

    @property
    def pays(self) -> bool:
        return self.tokens > GAIN * self.seconds

    def came(self, texts: int, tokens: float, seconds: float) -> None:
        self.asked, self.over = self.asked + texts, self.over + texts
        weight = texts / self.over
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)
        self.over = min(self.over, REMEMBERED if self.pays or self.asked < ENOUGH else RECENT)

    def asks(self, texts: int) -> bool:
        """Whether the next step asks: where it pays, all but one in PROBE; else a few in a row now and then.

        The one that does not ask shows what others take.
        """
        self.turn += 1
        if self.pays:
            self.wait, self.turn = PROBE, self.turn % PROBE
            return bool(self.turn)
        if self.turn < self.wait:
            return False
        if self.turn >= self.wait + max(2, RUN // texts) - 1:
            self.turn, self.wait = 0, min(LONG_PROBE, 2 * self.wait)
        return True

    def rest(self) -> int:
        steps = 0 if self.pays or not self.turn else max(0, min(REST, self.wait - RENEWED - self.turn))
        self.turn += steps
        return steps


class DraftLengthControl:
    """Times in seconds.

    by_outcome: whether to ask with so many texts is decided by what came of it before, once that is known; without,
    always by what the best drafts could bring.
    """

    def __init__(self, by_outcome: bool = True) -> None:
        self._by_outcome = by_outcome
        self._outcomes: dict[int, DraftOutcome] = {}  # by class of texts
        self._times: dict[int, dict[int, StepTime]] = {}  # by class of texts, and of rows, in order
        self._asking = 0.0  # what it takes to ask for one draft
        self._kept: dict[tuple[DraftSource, bool], float] = {}  # share of tries, of first tokens and of later ones
        self._tries: dict[tuple[DraftSource, bool], int] = {}
        self._refused: dict[DraftSource, int] = {}
        self._skipped = self._drafted = 0  # steps in a row
        self._left_out = 0  # drafts that did not go on

    def took(self, texts: int, rows: int, seconds: float) -> None:
        """A step of so many texts and tokens took so long, without the time in which drafts were asked for."""
        times = self._times.setdefault(bisect_left(BOUNDS, texts), {})
        place = bisect_left(BOUNDS, rows)
        if place not in times:
            times[place] = StepTime(rows, self._time(texts, rows) if times else seconds)
            self._times[bisect_left(BOUNDS, texts)] = times = dict(sorted(times.items()))
        known = times[place]
        weight = max(FRESH if seconds > known.seconds else FASTER, 1 / (known.count + 2))
        known.seconds += weight * (min(seconds, 3 * known.seconds) - known.seconds)
        known.rows += weight * (rows - known.rows)
        known.count += 1

    def drafts_requested(self, drafts: int, seconds: float) -> None:
        """So many drafts were asked for in so long."""
        self._asking += FRESH * (seconds / drafts - self._asking)

    def came(self, texts: int, rows: int, asking: float, kept: int) -> None:
        """Drafts were asked for in `asking` seconds.

        So the step of so many texts had so many rows, and so many draft tokens were kept.
        """
        plain = self._time(texts, texts)
        seconds = (self._time(texts, rows) + min(asking, plain)) / plain
        self._outcomes.setdefault(bisect_left(BOUNDS, texts), DraftOutcome()).came(texts, 1 + kept / texts, seconds)

    def tried(self, source: DraftSource, drafted: int, kept: int) -> None:
        """Of a draft the first `kept` tokens were chosen; the one after them, if there was one, was not."""
        self.tried_per_sequence([(source, place > 0) for place in range(drafted)], kept)

    def tried_per_sequence(self, kinds: Sequence[Kind | None], kept: int) -> None:
        """The same of a draft of several drafters, see `DraftTokens.kinds`."""
        for place, kind in enumerate(kinds[: kept + 1]):
            if kind is not None:
                share, tries = self.chance(*kind), self._tries.get(kind, 0)
                self._kept[kind] = share + max(SLOWLY, 1 / (tries + PRIOR)) * ((place < kept) - share)
                self._tries[kind] = tries + 1

    def chance(self, source: DraftSource, later: bool = False) -> float:
        """That the first token is kept, or a later one where those before it are."""
        known = self._kept.get((source, later))
        return FIRST.get(source.drafter, min(0.9, 0.4 + 0.04 * source.length)) if known is None else known

    def survival(self, source: DraftSource, length: int) -> list[float]:
        """That each of so many tokens is kept."""
        first, later = self.chance(source), self.chance(source, True)
        return [first * later**place for place in range(length)]

    def survives(self, kinds: Sequence[Kind | None]) -> list[float]:
        """That each token of a draft is kept, which has these kinds."""
        chances = [1.0 if kind is None else self.chance(*kind) for kind in kinds]
        return list(accumulate(chances, operator.mul))

    def seconds(self, texts: int, rows: int) -> float:
        """What a step of so many texts is expected to take that has so many rows."""
        return self._time(texts, rows)

    def measured(self, rows: int) -> bool:
        """Whether it is known what a step of so many rows without drafts takes."""
        place = bisect_left(BOUNDS, rows)
        plain = self._times.get(place, {}).get(place)
        return plain is not None and plain.count >= MEASURED

    def worth(self, rows: int) -> bool:
        """Whether draft tokens for each of so many rows could pay, if they were as good as the best."""
        if not self.measured(rows):
            return False
        of = self._outcomes.get(bisect_left(BOUNDS, rows))
        return self._may_pay(rows) if of is None or of.asked < ENOUGH or not self._by_outcome else of.asks(rows)

    def rest(self, rows: int) -> int:
        """For how many steps of so many rows it need not be asked again, as they are not `worth` it; 0: for none.

        These steps count as refused.
        """
        of = self._outcomes.get(bisect_left(BOUNDS, rows))
        if not self.measured(rows):
            return 0
        if of is None or of.asked < ENOUGH or not self._by_outcome:
            steps = max(0, min(REST, PROBE - RENEWED - self._skipped)) if self._skipped else 0
            self._skipped += steps
            return steps
        return of.rest()

    def _may_pay(self, rows: int) -> bool:
        best = max(self._kept.values(), default=0.9)
        pays = (
            self._rate(rows, sum(best**place for place in range(1, most + 1)) * rows, most * rows, self._asking * rows)
            for most in TRIED
        )
        if max(pays) > GAIN * self._rate(rows, 0.0):
            self._skipped = 0
            self._drafted = (self._drafted + 1) % PROBE
            return bool(self._drafted)  # a step without any, to know what it takes
        self._skipped = (self._skipped + 1) % PROBE
        return not self._skipped

    def goes_on(self, kinds: Sequence[Kind | None]) -> bool:
        """Whether to look for what follows such draft tokens; once in PROBE times where it is not likely to be kept."""
        if not self._by_outcome or self.survives(kinds)[-1] * self.chance(ONWARD) >= LIKELY:
            return True
        self._left_out = (self._left_out + 1) % PROBE
        return not self._left_out

    def lengths(self, rows: int, drafts: Sequence[tuple[DraftSource, Sequence[float]]], known: int = 0) -> list[int]:
        """How much of each draft a step takes that has so many rows without them.

        Of a draft: its source, and what `survives` says.

        known: further tokens of the step, which were not drafted.
        """
        known = known if self._by_outcome else 0
        if not drafts:
            return []
        steps = sorted(((gain, index) for index, (_, gains) in enumerate(drafts) for gain in gains), reverse=True)
        best, taken, expected = GAIN * self._rate(rows, 0.0, known), 0, 0.0
        for count, (gain, _) in enumerate(steps, 1):
            expected += gain
            if (rate := self._rate(rows, expected, known + count)) > best:
                best, taken = rate, count
        lengths = [0] * len(drafts)
        for _, index in steps[:taken]:
            lengths[index] += 1
        return [
            self._or_probe(source, len(gains), given) for (source, gains), given in zip(drafts, lengths, strict=True)
        ]

    def _rate(self, rows: int, more: float, drafted: int = 0, asking: float = 0.0) -> float:
        return (rows + more) / (self._time(rows, rows + drafted) + asking)

    def _time(self, texts: int, rows: int) -> float:
        """Between those that were measured.

        Beyond them it is taken to rise with the rows, once these are more than FREE.
        """
        low = None
        for high in self._times.get(bisect_left(BOUNDS, texts), {}).values():
            if high.rows >= rows:
                if low is None or high.rows <= low.rows:
                    return high.seconds
                return low.seconds + max(0.0, (rows - low.rows) / (high.rows - low.rows)) * (high.seconds - low.seconds)
            low = high
        return 1.0 if low is None else low.seconds * max(1.0, rows / max(FREE, low.rows))

    def _or_probe(self, source: DraftSource, length: int, given: int) -> int:
        if given or not length:
            self._refused[source] = 0
            return given
        self._refused[source] = self._refused.get(source, 0) + 1
        if self._refused[source] < PROBE:
            return 0
        self._refused[source] = 0
        return length
