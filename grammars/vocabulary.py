"""The bytes of every token, as tries in flat depth-first arrays, and the slices of plain JSON string text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sgl.grammars.cache import LruCache
from sgl.grammars.errors import InvalidGrammarError

MOST_GRAMMARS = 128
_PLAIN_EXCEPTIONS = frozenset('"\\') | {chr(c) for c in range(0x20)}


class Trie:
    """Tokens in the order of their bytes; a node is one byte after one prefix.

    Attributes:
        byte: uint8 [n], the node's byte.
        depth: uint16 [n], its depth, from 1.
        skip: int32 [n], the first node behind its subtree.
        first: int32 [n + 1]; `ids[first[i] : first[i + 1]]` are the tokens that end at node i.
        ids: int32 [tokens].
    """

    def __init__(self, tokens: Sequence[bytes], ids: Iterable[int]) -> None:
        ordered = sorted((tokens[i], i) for i in ids)
        texts = [text for text, _ in ordered]
        shared = _common_prefixes(texts)
        new = [text[keep:] for text, keep in zip(texts, shared, strict=True)]
        sizes = np.fromiter(map(len, new), np.int64, len(new))
        self.byte = np.frombuffer(b"".join(new), np.uint8).copy()
        starts = np.cumsum(sizes) - sizes
        within = np.arange(len(self.byte)) - np.repeat(starts, sizes)
        self.depth = (within + np.repeat(shared, sizes) + 1).astype(np.uint16)
        self.skip = _subtree_ends(self.depth)
        self.ids = np.fromiter((i for _, i in ordered), np.int32, len(ordered))
        ends = np.maximum.accumulate(starts + sizes - 1) if len(texts) else starts
        counts = np.bincount(ends, minlength=len(self.byte)) if len(texts) else np.zeros(0, np.int64)
        self.first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    def __len__(self) -> int:
        return len(self.byte)


def _common_prefixes(texts: list[bytes]) -> np.ndarray:
    """Length of the prefix each text shares with the one before it; int64 [n]."""
    found = np.zeros(len(texts), np.int64)
    for i in range(1, len(texts)):
        left, right = texts[i - 1], texts[i]
        limit = min(len(left), len(right))
        if left[:limit] == right[:limit]:
            found[i] = limit
            continue
        keep = 0
        while left[keep] == right[keep]:
            keep += 1
        found[i] = keep
    return found


def _subtree_ends(depth: np.ndarray) -> np.ndarray:
    """For each node the index of the next one that is not deeper; int32 [n]."""
    ends = np.full(len(depth), len(depth), np.int32)
    open_nodes: list[int] = []
    depths = depth.tolist()
    for i, level in enumerate(depths):
        while len(open_nodes) >= level:
            ends[open_nodes.pop()] = i
        open_nodes.append(i)
    return ends


class Vocabulary:
    """Token bytes, end-of-sequence ids and special ids of a tokenizer; build it once and share it.

    Special tokens and tokens without bytes are never part of a constrained text. `compiled` holds the grammars
    compiled for this vocabulary, `native` the C core's view of it.
    """

    def __init__(self, tokens: Sequence[bytes], eos_ids: Iterable[int], special_ids: Iterable[int] = ()) -> None:
        self.tokens: tuple[bytes, ...] = tuple(bytes(t) for t in tokens)
        self.size = len(self.tokens)
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(int(i) for i in eos_ids))
        self.special_ids = frozenset(int(i) for i in special_ids) | frozenset(self.eos_ids)
        for token in self.special_ids:
            if not 0 <= token < self.size:
                raise InvalidGrammarError(f"special token id {token} is outside the vocabulary of {self.size}")
        self.words = (self.size + 31) // 32
        self.reach = max((len(self.tokens[i]) for i in self.text_ids), default=0)
        self.compiled: LruCache[Any] = LruCache(MOST_GRAMMARS)
        self.native: Any = None

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> Vocabulary:
        """Of any object with `token_bytes`, `eos_ids` and `special_ids`, such as the runtime's tokenizer."""
        return cls(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids)

    @classmethod
    def from_bytes(
        cls, tokens: Sequence[bytes], eos_ids: Iterable[int], special_ids: Iterable[int] = ()
    ) -> Vocabulary:
        """Of the bytes of each token; the index is the token's id."""
        return cls(tokens, eos_ids, special_ids)

    @cached_property
    def text_ids(self) -> list[int]:
        """Ids of the tokens that stand for bytes."""
        return [i for i, token in enumerate(self.tokens) if token and i not in self.special_ids]

    @cached_property
    def eos_row(self) -> np.ndarray:
        """uint32 [words]: the bits of the end-of-sequence tokens."""
        return pack(self.eos_ids, self.words)

    @cached_property
    def trie(self) -> Trie:
        """Of all tokens with bytes."""
        return Trie(self.tokens, self.text_ids)

    @cached_property
    def rest(self) -> Trie:
        """Of the tokens that are not plain JSON string text."""
        return Trie(self.tokens, [i for i in self.text_ids if i not in self._plain_lengths])

    @cached_property
    def slices(self) -> np.ndarray:
        """uint32 [longest + 1, words]: row r holds the tokens of plain text of at most r characters."""
        lengths = self._plain_lengths
        rows = np.zeros((max(lengths.values(), default=0) + 1, self.words), np.uint32)
        for count in range(1, len(rows)):
            rows[count] = pack([i for i, n in lengths.items() if n == count], self.words)
        return np.bitwise_or.accumulate(rows, axis=0)

    @cached_property
    def _plain_lengths(self) -> dict[int, int]:
        """Characters of each token that is whole UTF-8 and can stand in a JSON string as it is."""
        found: dict[int, int] = {}
        for token in self.text_ids:
            try:
                text = self.tokens[token].decode()
            except UnicodeDecodeError:
                continue
            if _PLAIN_EXCEPTIONS.isdisjoint(text):
                found[token] = len(text)
        return found


def pack(ids: Iterable[int], words: int) -> np.ndarray:
    """Bits i % 32 of word i // 32 set for the given ids; uint32 [words]."""
    row = np.zeros(words, np.uint32)
    where = np.fromiter(ids, np.int64)
    np.bitwise_or.at(row, where >> 5, np.uint32(1) << (where & 31).astype(np.uint32))
    return row
