"""Sets of Unicode characters as sorted, disjoint, inclusive ranges of code points, and their byte forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

CharSet = tuple[tuple[int, int], ...]
ByteRanges = tuple[tuple[int, int], ...]

_FIRST_SURROGATE = 0xD800
ANY: CharSet = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # whole UTF-8 only: surrogates are no characters


def normalise(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Sort, merge and clip ranges to the Unicode scalar values."""
    merged: list[tuple[int, int]] = []
    start, end = 0, -2
    for low, high in sorted(ranges):
        if low > end + 1:
            merged.append((start, end))
            start, end = low, high
        elif high > end:
            end = high
    merged.append((start, end))
    del merged[0]  # what was before the first one
    return tuple(merged) if end < _FIRST_SURROGATE else intersect(tuple(merged), ANY)


def single(char: str) -> CharSet:
    return ((ord(char), ord(char)),)


def of(chars: str) -> CharSet:
    return normalise((ord(c), ord(c)) for c in chars)


def union(*sets: CharSet) -> CharSet:
    return normalise(r for s in sets for r in s)


def intersect(left: CharSet, right: CharSet) -> CharSet:
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            found.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


@lru_cache(maxsize=4096)
def complement(chars: CharSet) -> CharSet:
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= 0x10FFFF:
        gaps.append((start, 0x10FFFF))
    return intersect(tuple(gaps), ANY)


def minus(left: CharSet, right: CharSet) -> CharSet:
    return intersect(left, complement(right))


def size(chars: CharSet) -> int:
    return sum(high - low + 1 for low, high in chars)


def contains(chars: CharSet, code: int) -> bool:
    return any(low <= code <= high for low, high in chars)


_UTF8_LIMITS = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)


@lru_cache(maxsize=4096)
def utf8_sequences(chars: CharSet) -> tuple[ByteRanges, ...]:
    """The UTF-8 encodings of a set as sequences of byte ranges (each sequence is a product of ranges)."""
    return tuple(seq for low, high in chars for seq in _utf8_range(low, high))


def _utf8_range(low: int, high: int) -> Iterator[ByteRanges]:
    for limit in _UTF8_LIMITS:
        if low <= limit < high:
            yield from _utf8_range(low, limit)
            low = limit + 1
    yield from digit_ranges(list(chr(low).encode()), list(chr(high).encode()), 0x80, 0xBF)


def digit_ranges(low: list[int], high: list[int], least: int, most: int) -> Iterator[ByteRanges]:
    """Split a range of equally long digit strings into products of digit ranges.

    All digits but the first run from `least` to `most`; works for UTF-8 bytes and for hex digits alike.
    """
    if len(low) == 1:
        yield ((low[0], high[0]),)
        return
    full = ((least, most),) * (len(low) - 1)
    if low[0] == high[0]:
        for tail in digit_ranges(low[1:], high[1:], least, most):
            yield ((low[0], low[0]), *tail)
        return
    first, last = low[0], high[0]
    if any(d != least for d in low[1:]):
        for tail in digit_ranges(low[1:], [most] * len(full), least, most):
            yield ((first, first), *tail)
        first += 1
    ends_partly = any(d != most for d in high[1:])
    last -= ends_partly
    if first <= last:
        yield ((first, last), *full)
    if ends_partly:
        for tail in digit_ranges([least] * len(full), high[1:], least, most):
            yield ((high[0], high[0]), *tail)
