"""Which characters a case-insensitive pattern takes for one another, by the rule of Python's `re.IGNORECASE`.

Two characters are alike when their lower cases are equal, or when these have the same upper case (K and the Kelvin
sign, s and the long s). The rule is simple: a character is never alike a longer text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from typing import NamedTuple

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.regex.unicode_classes import characters

_BLOCK = 256
_ASCII_CASES = 0x20


class CaseFolding(NamedTuple):
    """All characters with a case in order, and for each of them the characters alike it."""

    codes: list[int]
    alike: dict[int, tuple[int, ...]]


@cache
def cases() -> CaseFolding:
    """Gathered from the interpreter's Unicode tables on first use."""
    families: dict[str, set[int]] = {}
    for code in _cased():
        lower = chr(code).lower()[0]  # one letter lowers to two: I with a dot, whose simple lower case is i
        families.setdefault(lower.upper(), set()).update((code, ord(lower)))
    alike = {code: tuple(sorted(family)) for family in families.values() for code in family}
    return CaseFolding(sorted(alike), alike)


def _cased() -> list[int]:
    found: list[int] = []
    everything = characters(0, 0x10FFFF)
    for start in range(0, len(everything), _BLOCK):
        block = everything[start : start + _BLOCK]
        if block.lower() != block or block.upper() != block:
            found += [ord(c) for c in block if c.lower() != c or c.upper() != c]
    return found


@lru_cache(maxsize=1024)
def fold(chars: CharSet, ascii_only: bool = False) -> CharSet:
    """The set with everything that is alike one of its members."""
    return charset.union(chars, _ascii_alike(chars) if ascii_only else _alike(chars))


def _ascii_alike(chars: CharSet) -> CharSet:
    upper = charset.intersect(chars, ((0x41, 0x5A),))
    lower = charset.intersect(chars, ((0x61, 0x7A),))
    return charset.union(
        tuple((low + _ASCII_CASES, high + _ASCII_CASES) for low, high in upper),
        tuple((low - _ASCII_CASES, high - _ASCII_CASES) for low, high in lower),
    )


def _alike(chars: CharSet) -> CharSet:
    codes, alike = cases()
    found: set[int] = set()
    for low, high in chars:
        for code in codes[bisect_left(codes, low) : bisect_right(codes, high)]:
            found.update(alike[code])
    return charset.normalise((code, code) for code in found)
