"""Drafts from what was written before: the text's last tokens stood somewhere already, and what followed there follows again.

Looked for in the text itself, its prompt included, and in finished texts of its namespace and tenant, never in those of others: how
fast a text comes would tell what they wrote. After SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975), by plain scans instead of a
tree. Of the places behind the longest match that is taken which the grammar lets the text go on as, the newest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..sequences.draft import Draft, Source
from .drafter import may_follow

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..cache import Ints, Space
    from ..sequences.decoding import Decoding
    from ..sequences.ops import Generate
    from ..sequences.sequence import SequenceState

KEY = 3  # tokens of a match, from which on it is looked at whole
PLACES = 4  # the newest of as many matching tokens that are looked at, up to KEY
LONGEST = 24  # tokens of a match that count
LEAST = 7  # tokens of a draft: on a CPU eight rows take about as long as one
CLASSES = (1, 2, 3, 4, 6, 9, 14, LONGEST)  # lengths of matches of which one expects the same
TEXT = 32_768  # tokens of finished texts of a namespace; the older half goes when they are more
ALL_TEXTS = 131_072  # of all namespaces, 4 bytes a token; those that were used last are kept
LEAD = 16  # tokens of the prompt that are kept before a finished text, where all of them may be
END = -1  # between texts


class Found(NamedTuple):
    """How many of the last tokens stood before somewhere, and what follows there."""

    length: int
    follows: Ints


class SuffixDrafter:
    def __init__(self) -> None:
        self._finished: OrderedDict[tuple[Space, str], Ints] = OrderedDict()

    def propose(self, seq: SequenceState, op: Generate, most: int) -> Draft | None:
        matcher = None if op is None or op.decoding is None else op.decoding.matcher
        found = self._found(seq, seq.tokens.array, matcher)
        if found is None:
            return None
        return Draft(_copied(found, most), Source("suffix", _class(found.length)))

    def onward(self, seq: SequenceState, tokens: list[int], matcher: Matcher) -> list[int]:
        """What follows behind a draft."""
        found = self._found(seq, np.append(seq.tokens.array, np.array(tokens, np.int32)), matcher)
        return [] if found is None else _copied(found, LEAST)

    def learn(self, seq: SequenceState, decoding: Decoding) -> None:
        home, text = home_of(seq), seq.tokens.array[max(0, decoding.prompt_tokens - (0 if seq.guarded else LEAD)) :][-TEXT // 2 + 1 :]
        kept = self._finished.get(home, np.empty(0, np.int32))
        if len(kept) + len(text) >= TEXT:
            kept = kept[len(kept) + len(text) + 1 - TEXT // 2 :]
        self._finished[home] = np.concatenate([kept, text, np.array([END], np.int32)])
        self._finished.move_to_end(home)
        while sum(map(len, self._finished.values())) > ALL_TEXTS:
            self._finished.popitem(last=False)

    def forget(self) -> None:
        self._finished.clear()

    def _found(self, seq: SequenceState, text: Ints, matcher: Matcher | None) -> Found | None:
        """The longest match that the text may go on from. Under a grammar a single token counts in the text itself only."""
        tail, others = text[-LONGEST:].tolist(), self._finished.get(home_of(seq))
        levels = [_levels(text, tail, 1)]
        if others is not None:
            levels.append(_levels(others, tail, 1 if matcher is None else 2))
        for alike in zip(*levels, strict=False):
            found = [each for some in alike for each in some]
            for length, place, there in sorted(found, key=_length) if len(found) > 1 else found:
                if matcher is None or may_follow(matcher, int(there[place])):
                    return Found(length, there[place : place + LONGEST])
        return None


def home_of(seq: SequenceState) -> tuple[Space, str]:
    """Whose texts it may be guessed from."""
    return seq.namespace, seq.terms.tenant


Place = tuple[int, int, "Ints"]  # how many of the last tokens stood there, and behind which place of which text


def _levels(text: Ints, tail: list[int], least: int) -> Iterator[list[Place]]:
    """Where KEY, then fewer, down to one of the last tokens of `tail` stood in a text; nothing for fewer than `least`."""
    at = (text[:-1] == tail[-1]).nonzero()[0]
    levels = [at]
    for back in range(1, min(KEY, len(tail))):
        if len(at) and at[0] < back:
            at = at[1:]
        if len(at):
            at = at[text[at - back] == tail[-1 - back]]
        levels.append(at)
    for length in range(KEY, 0, -1):
        places = levels[length - 1][: -PLACES - 1 : -1].tolist() if least <= length <= len(levels) else ()
        yield [(_match(text, place + 1, tail), place + 1, text) for place in places if text[place + 1] != END]


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


def _copied(found: Found, most: int) -> list[int]:
    """What follows, before the end of that text."""
    tokens = found.follows[: min(most, max(found.length, LEAST))].tolist()
    return tokens[: tokens.index(END)] if END in tokens else tokens


def _class(length: int) -> int:
    return max(least for least in CLASSES if least <= length)
