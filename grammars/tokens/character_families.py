"""Families of characters: the tokens made of them alone, and what the other tokens do after such a beginning.

A state from which every character of a family leads to one and the same state needs no walk of the whole trie: the
tokens of the family are one row of bits, the others begin to matter where they leave the family.
"""

from __future__ import annotations

import re

import numpy as np

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.regex.regex_character_sets import ECMA_SPACE
from sgl.grammars.tokens.token_texts import TokenTexts, token_tables
from sgl.grammars.tokens.token_trie import TokenTrie

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

    def __init__(self, chars: CharSet, texts: TokenTexts, words: int) -> None:
        self.spellings = _spellings(chars)
        if token_tables() is None:
            lengths, exits = plain_split(texts, chars)
        else:
            lengths, exits = _split(texts, self.spellings)
        pure = lengths >= 0
        self.rows = _cumulated(texts.ids[pure], lengths[pure], words)
        self.exits = TokenTrie(exits)


def _split(texts: TokenTexts, spellings: np.ndarray) -> tuple[np.ndarray, TokenTexts]:
    """What `plain_split` makes, by the core."""
    count = len(texts.ids)
    lengths, ids, starts = np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count + 1, np.int64)
    exits = np.zeros(len(texts.data) + count, np.uint8)
    arrays = (column.ctypes.data for column in (lengths, exits, starts, ids))
    found = token_tables().family_split(*texts.pointers, spellings.ctypes.data, len(spellings), MOST_CHARS, *arrays)
    return lengths, TokenTexts(exits[: starts[found]].copy(), starts[: found + 1].copy(), ids[:found].copy())


def plain_split(texts: TokenTexts, chars: CharSet) -> tuple[np.ndarray, TokenTexts]:
    """The characters of each text, -1 where it is not made of the family alone; and what `exits` is the trie of."""
    beginning = re.compile(b"(?:%s){0,%d}" % (_pattern(chars), MOST_CHARS), re.DOTALL)
    lengths, others = [], {}
    for token, text in texts.as_dict().items():
        end = beginning.match(text).end()  # type: ignore[union-attr]
        count = len(text[:end].decode())
        lengths.append(count if end == len(text) else -1)
        if end != len(text):
            others[token] = bytes([count]) + text[end:]
    return np.array(lengths, np.int32), TokenTexts.of(others, others)


def _pattern(chars: CharSet) -> bytes:
    """A regular expression over bytes for one character."""
    products = (b"".join(b"[\\x%02x-\\x%02x]" % pair for pair in ranges) for ranges in charset.utf8_sequences(chars))
    return b"|".join(products)


def _cumulated(ids: np.ndarray, lengths: np.ndarray, words: int) -> np.ndarray:
    """Row r holds the ids of length at most r; uint32 [longest + 1, words]."""
    rows = np.zeros((int(lengths.max(initial=0)) + 1, words), np.uint32)
    bits = np.uint32(1) << (ids & 31).astype(np.uint32)
    np.bitwise_or.at(rows.reshape(-1), lengths.astype(np.int64) * words + (ids >> 5), bits)
    return np.bitwise_or.accumulate(rows, axis=0)


def _spellings(chars: CharSet) -> np.ndarray:
    rows = [[len(ranges), *(value for pair in ranges for value in pair)] for ranges in charset.utf8_sequences(chars)]
    return np.array([row + [0] * (FIELDS - len(row)) for row in rows], np.uint8)
