"""The texts of sequences, as token ids, kept while somebody asks for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable

from ..calibration.calibration_texts import RecordedText
from ..errors import EngineDied
from ..sequences.sequence_state import SequenceState

Answers = tuple[tuple[int, int], ...]


class TextRecordings:
    """Those under way, by number; the scheduler thread's own."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, RecordedText]] = {}
        self._answers: dict[SequenceState, Answers] = {}  # of those that live
        self._numbers = itertools.count(time.time_ns())  # those of a process that died before are no others'

    def begin(self) -> int:
        number = next(self._numbers)
        self._open[number] = {}
        return number

    def answered(self, seq: SequenceState, start: int) -> None:
        """The tokens of a sequence from `start` on were generated."""
        if self._open:
            self._answers[seq] = (*self._answers.get(seq, ()), (start, len(seq)))

    def born(self, parent: SequenceState, child: SequenceState) -> None:
        """A sequence begins with what another holds."""
        if parent in self._answers:
            self._answers[child] = self._answers[parent]

    def cut(self, seq: SequenceState, length: int) -> None:
        """A sequence keeps that many tokens."""
        if seq in self._answers:
            self._answers[seq] = tuple(
                (start, min(stop, length)) for start, stop in self._answers[seq] if start < length
            )

    def over(self, seq: SequenceState) -> None:
        """Nothing will be appended to a sequence any more.

        Its own text comes after those of its probes, and in place of them.
        """
        for texts in self._open.values():
            texts[seq.number] = self._text(seq)
        self._answers.pop(seq, None)

    def end(self, number: int, live: Iterable[SequenceState]) -> list[RecordedText]:
        """Texts of the sequences that ended meanwhile, and so far of living ones; without what others begin with."""
        if number not in self._open:
            raise EngineDied("the recording began in a process of the engine that died since; begin a new one")
        texts, so_far = self._open.pop(number), dict[int, RecordedText]()
        for seq in live:  # a sequence before its probes
            so_far.setdefault(seq.number, self._text(seq))
        if not self._open:
            self._answers.clear()
        return _longest({text.tokens: text for text in sorted((texts | so_far).values())})

    def _text(self, seq: SequenceState) -> RecordedText:
        return RecordedText(tuple(seq.tokens.array.tolist()), self._answers.get(seq, ()))


def _longest(texts: dict[tuple[int, ...], RecordedText]) -> list[RecordedText]:
    """Those that are no beginning of another. texts: by their tokens, in order."""
    followed = zip(texts, [*list(texts)[1:], ()], strict=True)
    return [texts[tokens] for tokens, following in followed if tokens and following[: len(tokens)] != tokens]
