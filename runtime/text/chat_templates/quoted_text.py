"""Text of which some stretches are quoted: a special token that they spell stays text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

PRIVATE = range(0xF0000, 0xFFFFE)  # a plane of characters without a meaning, to mark places in texts with

Stretch = tuple[int, int, bool]  # first character, end (exclusive), whether the model's own words


class QuotedText(str):
    """A text that knows which of its characters were written by strangers. To whom it is a str, it is one.

    quoted: stretches in order, apart from each other. What they spell of the marks of turns stays text; in the
    model's own words only special tokens do, for templates look for other marks ("</think>") there.

    Passages and texts are joined with +, texts being unquoted; all else that strs can do forgets the stretches.
    """

    __slots__ = ("quoted",)

    quoted: tuple[Stretch, ...]

    def __new__(cls, text: str, quoted: Iterable[Stretch] = ()) -> QuotedText:
        passage = super().__new__(cls, text)
        passage.quoted = tuple(quoted)
        return passage

    def __getnewargs__(self) -> tuple[str, tuple[Stretch, ...]]:  # type: ignore[override]
        return str(self), self.quoted

    def __add__(self, other: str) -> QuotedText:
        """Spans before stay as they are: a text that grows by pieces is not looked through again and again."""
        more = [(start + len(self), stop + len(self), own) for start, stop, own in getattr(other, "quoted", ())]
        before = self.quoted
        if more and before and before[-1][1:] == (more[0][0], more[0][2]):
            more[0], before = (before[-1][0], *more[0][1:]), before[:-1]
        return QuotedText(str.__add__(self, other), before + tuple(more))

    def __radd__(self, other: str) -> QuotedText:
        return joined((other, self))

    def stretches(self) -> Iterator[tuple[str, bool, bool]]:
        """The whole text as (part, whether it is quoted, whether it is the model's own words)."""
        text, ends = str(self), [0]
        own = {(start, stop): said for start, stop, said in self.quoted}
        for start, stop, _ in self.quoted:
            ends += (start, stop)
        for place in pairwise([*ends, len(text)]):
            if place[0] < place[1]:
                yield text[place[0] : place[1]], place in own, own.get(place, False)

    def ending(self, count: int) -> QuotedText:
        """The last `count` characters."""
        cut = len(self) - count
        kept = ((max(start, cut) - cut, stop - cut, own) for start, stop, own in self.quoted if stop > cut)
        return QuotedText(str(self)[cut:], kept)


def quoted(text: str, own: bool = False) -> QuotedText:
    """The text with all of it quoted; `own`: as the model's own words."""
    return QuotedText(str(text), [(0, len(text), own)] if text else ())


def joined(texts: Iterable[str]) -> QuotedText:
    """One passage of all the texts."""
    parts = list(texts)
    found: list[Stretch] = []
    at = 0
    for part in parts:
        for start, stop, own in part.quoted if isinstance(part, QuotedText) else ():
            begin, end = start + at, stop + at
            if found and found[-1][1:] == (begin, own):
                begin = found.pop()[0]
            found.append((begin, end, own))
        at += len(part)
    return QuotedText("".join(parts), found)


def ending(text: str, count: int) -> str:
    """The last `count` characters of a text, quoted where they are."""
    return text.ending(count) if isinstance(text, QuotedText) else text[len(text) - count :]
