"""Families of characters: the tokens made of them alone, and what the other tokens do after such a beginning.

A state from which every character of a family leads to one and the same state needs no walk of the whole trie: the
tokens of the family are one row of bits, the others begin to matter where they leave the family.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.regex.regex_character_sets import ECMA_SPACE
from sgl.grammars.tokens.token_trie import TokenTrie, pack

MOST_CHARS = 63
FIELDS = 9
_LINE_ENDS = charset.of("\n\r\u2028\u2029")
_LINE = charset.complement(_LINE_ENDS)
_PLAIN = charset.minus(_LINE, charset.union(((0, 0x1F),), charset.of('"\\')))
PLAIN = 1
_WORD = charset.union(((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)), charset.of("_"))
FAMILIES: tuple[CharSet, ...] = (_LINE, _PLAIN, charset.minus(_PLAIN, ECMA_SPACE), _WORD, ((0x61, 0x7A),))


class CharacterFamily:
    """What a vocabulary is to one set of characters.

    Attributes:
        rows: uint32 [longest + 1, words]: row r holds the tokens of at most r characters, all of the family.
        exits: the other tokens, as a byte that says with how many characters of the family they begin (at most 63
            are counted), then what comes after those.
        spellings: uint8 [n, 9]: the UTF-8 forms of the family as products of byte ranges: how many bytes, then the
            lowest and the highest value of each.
    """

    def __init__(self, chars: CharSet, tokens: Sequence[bytes], ids: Sequence[int], words: int) -> None:
        beginning = re.compile(b"(?:%s){0,%d}" % (_pattern(chars), MOST_CHARS), re.DOTALL)
        pure: dict[int, int] = {}
        others: dict[int, bytes] = {}
        for i in ids:
            token = tokens[i]
            end = beginning.match(token).end()  # type: ignore[union-attr]
            count = len(token[:end].decode())
            if end == len(token):
                pure[i] = count
            else:
                others[i] = bytes([count]) + token[end:]
        self.rows = _cumulated(pure, words)
        self.exits = TokenTrie(others, others)
        self.spellings = _spellings(chars)


def _pattern(chars: CharSet) -> bytes:
    """A regular expression over bytes for one character."""
    products = (b"".join(b"[\\x%02x-\\x%02x]" % pair for pair in ranges) for ranges in charset.utf8_sequences(chars))
    return b"|".join(products)


def _cumulated(lengths: dict[int, int], words: int) -> np.ndarray:
    """Row r holds the ids of length at most r; uint32 [longest + 1, words]."""
    by_length: list[list[int]] = [[] for _ in range(max(lengths.values(), default=0) + 1)]
    for i, length in lengths.items():
        by_length[length].append(i)
    return np.bitwise_or.accumulate([pack(ids, words) for ids in by_length], axis=0)


def _spellings(chars: CharSet) -> np.ndarray:
    rows = [[len(ranges), *(value for pair in ranges for value in pair)] for ranges in charset.utf8_sequences(chars)]
    return np.array([row + [0] * (FIELDS - len(row)) for row in rows], np.uint8)
