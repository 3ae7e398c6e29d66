"""Where the last tokens of a text stood before, in the text itself and in others.

Looked for by the compiled kernels (`csrc/sampling/suffix_lookup.h`) if there are any; the search here finds the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..layers import cpu_kernels

if TYPE_CHECKING:
    from ..cache import Ints

KEY = 3  # tokens of a match, from which on it is looked at whole
PLACES = 4  # the newest of as many matching tokens that are looked at, up to KEY
LONGEST = 24  # tokens of a match that count
END = -1  # between texts

Place = tuple[int, int, "Ints"]  # how many of the last tokens were there, and after which place of which text


def earlier_places(text: Ints, others: Ints | None, least: int) -> Iterator[Place]:
    """Places after KEY, then fewer, down to one of the last tokens of `text`; in `others` after `least` or more.

    Each time the longest match comes first.
    """
    if cpu_kernels.kernels is None:
        yield from searched(text, others, least)
        return
    found = iter(cpu_kernels.kernels.places(text, others, least))
    for length, which, place in zip(found, found, found, strict=True):
        yield length, place, others if which and others is not None else text


def searched(text: Ints, others: Ints | None, least: int) -> Iterator[Place]:
    tail = text[-LONGEST:].tolist()
    levels = [_levels(text, tail, 1)] if tail else []
    if tail and others is not None:
        levels.append(_levels(others, tail, least))
    for alike in zip(*levels, strict=False):
        yield from sorted((each for some in alike for each in some), key=_length)


def _levels(text: Ints, tail: list[int], least: int) -> Iterator[list[Place]]:
    """Where KEY, then fewer, down to one of the last tokens of `tail` are in a text; nothing for fewer than `least`."""
    at = (text[:-1] == tail[-1]).nonzero()[0]
    levels = [at]
    for back in range(1, min(KEY, len(tail))):
        if len(at) and at[0] < back:
            at = at[at >= back]
        if len(at):
            at = at[text[at - back] == tail[-1 - back]]
        levels.append(at)
    for length in range(KEY, 0, -1):
        found = levels[length - 1][: -PLACES - 1 : -1].tolist() if least <= length <= len(levels) else ()
        yield [(_match(text, place + 1, tail), place + 1, text) for place in found if text[place + 1] != END]


def _length(found: Place) -> int:
    return -found[0]


def _match(text: Ints, place: int, tail: list[int]) -> int:
    before = text[max(0, place - len(tail)) : place].tolist()
    before.reverse()
    length = 0
    for one, other in zip(before, reversed(tail), strict=False):
        if one != other:
            break
        length += 1
    return length
