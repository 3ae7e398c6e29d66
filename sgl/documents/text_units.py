"""A text in units that are not cut further: paragraphs, and of long ones sentences, lines, words or characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from sgl.lang.errors import BadValueError

from .token_counts import TokenCounter

_LONGEST = 32  # characters per token; a text with more of them is too long without counting
_SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u201d\u2019)\]]*\s+|[\u3002\uff01\uff1f][\u300d\u300f\u201d]*\s*")
_LINE_END = re.compile(r"\n\s*")
_WORD_START = re.compile(r"(?<=\S)(?=\s)")


class Unit(NamedTuple):
    """The characters `start` to `end`, and how many tokens they have by themselves."""

    start: int
    end: int
    tokens: int


def units_of(text: str, starts: Iterable[int], limit: int, count: TokenCounter) -> Iterator[Unit]:
    """Units of at most `limit` tokens that cover the text, in order.

    starts: where the paragraphs start. White space after a paragraph, sentence or line belongs to it; that between
    two words belongs to the second. Linear in the length of the text. Raises BadValueError if a character has more
    tokens than the limit.
    """
    return _fitting(text, _cut_at([*starts], 0, len(text)) if text else [], 0, limit, count)


def _fitting(text: str, cuts: Sequence[int], level: int, limit: int, count: TokenCounter) -> Iterator[Unit]:
    """What is between two cuts, as it is if it fits, else in the units of a finer level."""
    for start, end in pairwise(cuts):
        tokens = count(text[start:end]) if end - start <= _LONGEST * limit else None
        if tokens is not None and tokens <= limit:
            yield Unit(start, end, tokens)
        else:
            yield from _fitting(text, _finer(text, start, end, level, limit), level + 1, limit, count)


def _finer(text: str, start: int, end: int, level: int, limit: int) -> list[int]:
    if level < 2:
        ends = (_SENTENCE_END, _LINE_END)[level].finditer(text, start, end)
        return _cut_at([found.end() for found in ends], start, end)
    size = max(1, limit // 2)
    if level == 2:
        return _spaced([found.start() for found in _WORD_START.finditer(text, start, end)], start, end, size)
    if end - start == 1:
        raise BadValueError(f"the character {text[start]!r} at {start} has more tokens than a piece may have: {limit}")
    return _cut_at([*range(start + size, end, size)] if end - start > size else [(start + end) // 2], start, end)


def _cut_at(between: list[int], start: int, end: int) -> list[int]:
    return [start, *(at for at in between if start < at < end), end]


def _spaced(between: list[int], start: int, end: int, size: int) -> list[int]:
    """Cuts at least `size` apart, so that short words are counted together; a long word has two."""
    kept = [start]
    before = start
    for at in [*between, end]:
        if at - kept[-1] > size and before > kept[-1]:
            kept.append(before)
        before = at
    return kept if kept[-1] == end else [*kept, end]
