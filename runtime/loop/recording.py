"""The texts of sequences, as token ids, kept while somebody asks for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

from ..errors import EngineDied
from ..sequences.sequence import SequenceState

Text = tuple[int, ...]


class Recordings:
    """Those under way, by number; the scheduler thread's own."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, Text]] = {}
        self._numbers = itertools.count(time.time_ns())  # those of a process that died before are no others'

    def begin(self) -> int:
        number = next(self._numbers)
        self._open[number] = {}
        return number

    def over(self, seq: SequenceState) -> None:
        """Nothing will be appended to a sequence any more. Its own text comes after those of its probes, and in place of them."""
        for texts in self._open.values():
            texts[seq.number] = _text(seq)

    def end(self, number: int, live: Iterable[SequenceState]) -> list[list[int]]:
        """Texts of the sequences that ended meanwhile, and as far as they are of those that live; without what others begin with."""
        if number not in self._open:
            raise EngineDied("the recording began in a process of the engine that died since; begin a new one")
        texts, so_far = self._open.pop(number), dict[int, Text]()
        for seq in live:  # a sequence before its probes
            so_far.setdefault(seq.number, _text(seq))
        found = sorted({*(texts | so_far).values()})
        followed = zip(found, [*found[1:], ()], strict=True)
        return [list(text) for text, behind in followed if text and behind[: len(text)] != text]


def _text(seq: SequenceState) -> Text:
    return tuple(seq.tokens.array.tolist())
