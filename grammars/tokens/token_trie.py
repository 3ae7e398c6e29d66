"""Tokens as tries in flat depth-first arrays, and as rows of bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

_NODE = np.dtype([("skip", "i4"), ("first", "i4"), ("depth", "u2"), ("byte", "u1")], align=True)


class TokenTrie:
    """Tokens in the order of their bytes; a node is one byte after one prefix.

    Attributes:
        byte: uint8 [n], the node's byte.
        depth: uint16 [n], its depth, from 1.
        skip: int32 [n], the first node after its subtree.
        first: int32 [n + 1]; `ids[first[i] : first[i + 1]]` are the tokens that end at node i.
        ids: int32 [tokens].
    """

    def __init__(self, tokens: Sequence[bytes] | Mapping[int, bytes], ids: Iterable[int]) -> None:
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

    @cached_property
    def nodes(self) -> np.ndarray:
        """The columns as rows, for C: (skip, first, depth, byte) [n + 1]."""
        rows = np.zeros(len(self) + 1, _NODE)
        for name in ("skip", "depth", "byte"):
            rows[name][:-1] = getattr(self, name)
        rows["first"] = self.first
        return rows

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
