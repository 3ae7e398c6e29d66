"""Drafts from what was written before: the text's last tokens stood somewhere already, and what followed there follows again.

Looked for in the text itself, its prompt included, and in finished texts of its namespace and tenant, never in those of others: how
fast a text comes would tell what they wrote. After SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975), by an index of the places
behind every KEY tokens instead of a tree.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from ..sequences.draft import Draft, Source

if TYPE_CHECKING:
    from ..cache import Ints, Space
    from ..sequences.decoding import Decoding
    from ..sequences.ops import Generate
    from ..sequences.sequence import SequenceState

KEY = 3  # tokens by which a place is found
SHORT = 1  # the same in the text itself, where a grammar leaves little else: what a value begins with often stands in the prompt
PLACES = 4  # the newest, that are kept of each
LONGEST = 24  # tokens of a match that count
LEAST = 7  # tokens of a draft: on a CPU eight rows take about as long as one
CLASSES = (1, 2, 3, 4, 6, 9, 14, LONGEST)  # lengths of matches of which one expects the same
TEXT = 32_768  # tokens of finished texts of a namespace; the older half goes when they are more
ALL_TEXTS = 131_072  # of all namespaces, some 200 bytes a token; those that were used last are kept
LEAD = 16  # tokens of the prompt that are kept before a finished text
END = -1  # between texts


class Finished:
    """The finished texts of one namespace, and where each run of KEY tokens ended in them."""

    def __init__(self) -> None:
        self.tokens = np.empty(0, np.int32)
        self._places: dict[tuple[int, ...], list[int]] = {}

    def add(self, text: Ints) -> None:
        start = len(self.tokens)
        if start + len(text) >= TEXT:
            self.tokens, self._places, start = self.tokens[-TEXT // 2 :], {}, 0
        self.tokens = np.concatenate([self.tokens, text[-TEXT // 2 :], np.array([END], np.int32)])
        fresh = self.tokens[start:].tolist()
        for index in range(len(fresh) - KEY):
            kept = self._places.setdefault(tuple(fresh[index : index + KEY]), [])
            kept.append(start + index + KEY)
            if len(kept) > PLACES:
                del kept[0]

    def behind(self, tail: list[int]) -> list[int]:
        """Places behind the last KEY tokens of `tail`, the newest first."""
        return self._places.get(tuple(tail[-KEY:]), [])[::-1]


class SuffixDrafter:
    def __init__(self) -> None:
        self._finished: OrderedDict[tuple[Space, str], Finished] = OrderedDict()

    def propose(self, seq: SequenceState, op: Generate, most: int) -> Draft | None:
        text = seq.tokens.array
        if len(text) < KEY:
            return None
        tail = text[-LONGEST:].tolist()
        found = [_best(text, _behind(text, KEY), tail, KEY)]
        if (others := self._finished.get(home_of(seq))) is not None:
            found.append(_best(others.tokens, others.behind(tail), tail, KEY))
        if not any(length for length, _ in found):
            found = [_best(text, _behind(text, SHORT), tail, SHORT)]
        length, follows = max(found, key=lambda pair: pair[0])
        tokens = _of_one(follows[: min(most, max(length, LEAST))].tolist())
        return Draft(tokens, Source("suffix", _class(length))) if tokens else None

    def learn(self, seq: SequenceState, decoding: Decoding) -> None:
        home = home_of(seq)
        texts = self._finished.setdefault(home, Finished())
        self._finished.move_to_end(home)
        texts.add(seq.tokens.array[max(0, decoding.prompt_tokens - LEAD) :])
        while sum(len(each.tokens) for each in self._finished.values()) > ALL_TEXTS:
            self._finished.popitem(last=False)

    def forget(self) -> None:
        self._finished.clear()


def _behind(text: Ints, key: int) -> list[int]:
    """Places in a text behind its own last `key` tokens, the newest first."""
    found = text[key - 1 : -1] == text[-1]
    for back in range(1, key):
        found &= text[key - 1 - back : -1 - back] == text[-1 - back]
    return (np.flatnonzero(found)[: -PLACES - 1 : -1] + key).tolist()


def home_of(seq: SequenceState) -> tuple[Space, str]:
    """Whose texts it may be guessed from."""
    return seq.namespace, seq.terms.tenant


def _best(text: Ints, places: list[int], tail: list[int], least: int) -> tuple[int, Ints]:
    """Of the place with the longest match before it, the newest of such: its length, and what follows there."""
    best, follows = 0, text[:0]
    for place in places:
        if place < len(text) and text[place] != END and (length := _match(text, place, tail)) > best:
            best, follows = length, text[place : place + LONGEST]
    return (best, follows) if best >= least else (0, text[:0])


def _match(text: Ints, place: int, tail: list[int]) -> int:
    before = text[max(0, place - len(tail)) : place].tolist()
    length = 0
    while length < min(len(before), len(tail)) and before[-1 - length] == tail[-1 - length]:
        length += 1
    return length


def _of_one(tokens: list[int]) -> list[int]:
    """Those before the end of a text."""
    return tokens[: tokens.index(END)] if END in tokens else tokens


def _class(length: int) -> int:
    return max(least for least in CLASSES if least <= length) if length >= CLASSES[0] else 0
