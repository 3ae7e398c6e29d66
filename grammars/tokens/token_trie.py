"""Tokens as tries in flat depth-first arrays, and as rows of bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from sgl.grammars.tokens.token_texts import TokenTexts, token_tables

_NODE = np.dtype([("skip", "i4"), ("first", "i4"), ("depth", "u2"), ("byte", "u1")], align=True)


class TokenTrie:
    """Tokens in the order of their bytes; a node is one byte after one prefix.

    Attributes:
        nodes: (skip, first, depth, byte) [n + 1], as C reads them.
        ids: int32 [tokens].
        byte: uint8 [n], the node's byte.
        depth: uint16 [n], its depth, from 1.
        skip: int32 [n], the first node after its subtree.
        first: int32 [n + 1]; `ids[first[i] : first[i + 1]]` are the tokens that end at node i.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self.nodes, self.ids = _trie(texts) if token_tables() is not None else plain_trie(texts)
        self.byte, self.depth, self.skip = (self.nodes[name][:-1] for name in ("byte", "depth", "skip"))
        self.first = self.nodes["first"]

    @classmethod
    def of(cls, tokens: Sequence[bytes] | Mapping[int, bytes], ids: Iterable[int]) -> TokenTrie:
        return cls(TokenTexts.of(tokens, ids))

    def __len__(self) -> int:
        return len(self.nodes) - 1

    @cached_property
    def roots(self) -> np.ndarray:
        """The uppermost node of each byte, -1 where there is none; int32 [256]."""
        found = np.full(256, -1, np.int32)
        uppermost = np.flatnonzero(self.depth == 1)
        found[self.byte[uppermost]] = uppermost
        return found

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Byte, depth, skip, first and ids for plain Python, which reads lists faster than arrays."""
        columns = (self.byte, self.depth, self.skip, self.first, self.ids)
        byte, depth, skip, first, ids = (column.tolist() for column in columns)
        return byte, depth, skip, first, ids


def _trie(texts: TokenTexts) -> tuple[np.ndarray, np.ndarray]:
    """What `plain_trie` makes, by the core."""
    nodes, ids = np.zeros(len(texts.data) + 1, _NODE), np.zeros_like(texts.ids)
    size = token_tables().token_trie(*texts.pointers, nodes.ctypes.data, ids.ctypes.data)
    if size < 0:
        raise MemoryError("out of memory for a trie of tokens")
    return nodes[: size + 1].copy(), ids


def plain_trie(texts: TokenTexts) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and ids of a trie."""
    ordered = sorted((text, token) for token, text in texts.as_dict().items())
    sorted_texts = [text for text, _ in ordered]
    shared = _common_prefixes(sorted_texts)
    new = [text[keep:] for text, keep in zip(sorted_texts, shared, strict=True)]
    sizes = np.fromiter(map(len, new), np.int64, len(new))
    starts = np.cumsum(sizes) - sizes
    nodes = np.zeros(sizes.sum() + 1, _NODE)
    nodes["byte"][:-1] = np.frombuffer(b"".join(new), np.uint8)
    within = np.arange(len(nodes) - 1) - np.repeat(starts, sizes)
    nodes["depth"][:-1] = within + np.repeat(shared, sizes) + 1
    nodes["skip"][:-1] = _subtree_ends(nodes["depth"][:-1])
    ends = np.maximum.accumulate(starts + sizes - 1) if len(ordered) else starts
    nodes["first"][1:] = np.cumsum(np.bincount(ends, minlength=len(nodes) - 1)) if len(ordered) else 0
    return nodes, np.fromiter((token for _, token in ordered), np.int32, len(ordered))


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


def pack(ids: Iterable[int], words: int) -> np.ndarray:
    """Bits i % 32 of word i // 32 set for the given ids; uint32 [words]."""
    row = np.zeros(words, np.uint32)
    where = np.fromiter(ids, np.int64)
    np.bitwise_or.at(row, where >> 5, np.uint32(1) << (where & 31).astype(np.uint32))
    return row
