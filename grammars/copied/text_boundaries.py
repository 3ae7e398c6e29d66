"""Where a piece of a text may begin and end.

A piece never cuts a character from its combining marks. Pieces of whole words also cut no word, and have no whitespace
at their ends. A word is a run of letters, digits, `_` and marks, with an apostrophe between two letters, and `.`, `,`
or `:` between two digits. A letter of a script without spaces (Han, Kana, Thai ...) is a word. Any other character is
a word as well.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np

WORDS, CHARACTERS = "words", "characters"  # what pieces are made of

_LETTER, _DIGIT, _MARK, _SPACE, _OTHER, _UNSPACED, _APOSTROPHE, _POINT, _JOINER, _FLAG = b"ldmsouapjf"
_SPECIAL = {
    "'": "a",
    "\u2019": "a",
    ".": "p",
    ",": "p",
    ":": "p",
    "_": "l",
    "\u200d": "j",
    "\u200b": "s",
    "\ufeff": "s",
}
_UNSPACED_RANGES = (
    *((0x0E00, 0x0EFF), (0x0F00, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x3005, 0x3007)),
    *((0x3021, 0x3029), (0x3040, 0x309F), (0x3105, 0x312F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    *((0x1B000, 0x1B16F), (0x20000, 0x3FFFF)),
)
_OF_WORD = np.zeros(256, bool)
_OF_WORD[[_LETTER, _DIGIT, _MARK]] = True


class Boundaries(NamedTuple):
    """By position in a text, its end included: whether a piece may begin there, and whether one may end there.

    `inner` says of each character whether it is an apostrophe or point within a word. `starts` at a position then
    depends only on the characters before and after it, taken with their `inner`: the automaton relies on that.
    """

    starts: np.ndarray
    ends: np.ndarray
    inner: np.ndarray


def boundaries(text: str, pieces: str) -> Boundaries:
    """Those of a text. `pieces` is WORDS or CHARACTERS. Arrays of bool; the first two are one longer than the text."""
    kinds = _kinds(text)
    words = pieces == WORDS
    inner = _inner(kinds) if words else np.zeros(len(kinds), bool)
    free = np.ones(len(kinds) + 1, bool)
    free[1:-1] = ~_joined(kinds, inner, words)
    starts, ends = free.copy(), free.copy()
    starts[:-1] &= kinds != _MARK
    starts[-1:] = ends[:1] = False
    if words:
        starts[:-1] &= kinds != _SPACE
        ends[1:] &= kinds != _SPACE
    return Boundaries(starts, ends, inner)


def _kinds(text: str) -> np.ndarray:
    """The kind of each character, a byte."""
    table = {ord(char): _kind(char) for char in set(text)}
    return np.frombuffer(text.translate(table).encode(), np.uint8)


@lru_cache(maxsize=1 << 14)
def _kind(char: str) -> str:
    category, code = unicodedata.category(char), ord(char)
    if char in _SPECIAL:
        return _SPECIAL[char]
    if category[0] == "M" or category == "Cf" or 0x1F3FB <= code <= 0x1F3FF:  # the last change an emoji's colour
        return "m"
    if 0x1F1E6 <= code <= 0x1F1FF:  # two of these letters are a flag
        return "f"
    if any(low <= code <= high for low, high in _UNSPACED_RANGES) and category[0] == "L":
        return "u"
    if char.isspace() or category in ("Cc", "Zs", "Zl", "Zp"):
        return "s"
    return {"L": "l", "N": "d"}.get(category[0], "o")


def _inner(kinds: np.ndarray) -> np.ndarray:
    """Apostrophes between letters, and points between digits."""
    inner = np.zeros(len(kinds), bool)
    before, at, after = kinds[:-2], kinds[1:-1], kinds[2:]
    inner[1:-1] = (at == _APOSTROPHE) & (before == _LETTER) & (after == _LETTER)
    inner[1:-1] |= (at == _POINT) & (before == _DIGIT) & (after == _DIGIT)
    return inner


def _joined(kinds: np.ndarray, inner: np.ndarray, words: bool) -> np.ndarray:
    """Of each two neighbours, whether no piece is cut between them."""
    before, after = kinds[:-1], kinds[1:]
    joined = (after == _MARK) | (after == _JOINER) | (before == _JOINER) | ((before == _FLAG) & (after == _FLAG))
    if words:
        of_word = _OF_WORD[kinds] | inner
        joined |= of_word[:-1] & of_word[1:]
    return joined
