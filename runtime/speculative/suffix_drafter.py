"""Drafts from what was written before: the text's last tokens were there already, and what followed follows again.

Looked for in the text itself, its prompt included, and in finished texts of its namespace and tenant. Never in those of
others: how fast a text comes would reveal what they wrote. After SuffixDecoding (Oliaro et al., 2024, arXiv
2411.04975), by plain scans instead of a tree. Of the places after the longest match that one is taken which the grammar
allows as the next text, the newest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..layers import cpu_kernels
from ..sequences.draft_tokens import DraftSource, DraftTokens
from .drafter import may_follow

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..cache import Ints, Space
    from ..sequences.ops.generate_op import Generate
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import SequenceState

KEY = 3  # tokens of a match, from which on it is looked at whole
PLACES = 4  # the newest of as many matching tokens that are looked at, up to KEY
LONGEST = 24  # tokens of a match that count
END = -1  # between texts
LEAST = 7  # tokens of a draft: on a CPU eight rows take about as long as one
CLASSES = (1, 2, 3, 4, 6, 9, 14, LONGEST)  # lengths of matches of which one expects the same
TEXT = 32_768  # tokens of finished texts of a namespace; the older half goes when they are more
ALL_TEXTS = 131_072  # of all namespaces, 4 bytes a token; those that were used last are kept
LEAD = 16  # tokens of the prompt that are kept before a finished text, where all of them may be

BORDER = np.array([END], np.int32)
Place = tuple[int, int, "Ints"]  # how many of the last tokens were there, and after which place of which text


class SuffixMatch(NamedTuple):
    """How many of the last tokens stood before somewhere, and what follows there."""

    length: int
    follows: Ints


@dataclass(slots=True)
class FinishedTexts:
    """Texts, END after each.  fresh: those that are not among `joined` yet, as none was asked for since."""

    joined: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    fresh: list[Ints] = field(default_factory=list)
    length: int = 0

    def __len__(self) -> int:
        return self.length

    def add(self, text: Ints) -> None:
        self.fresh += text.copy(), BORDER
        self.length += len(text) + 1
        if self.length > TEXT:
            self.joined, self.length = self.tokens()[-(TEXT // 2) :].copy(), TEXT // 2

    def tokens(self) -> Ints:
        if self.fresh:
            self.joined = np.concatenate([self.joined, *self.fresh])
            self.fresh.clear()
        return self.joined


class SuffixDrafter:
    def __init__(self) -> None:
        self._finished: OrderedDict[tuple[Space, str], FinishedTexts] = OrderedDict()
        self._length = 0  # of all of them

    def propose(self, seq: SequenceState, op: Generate, most: int) -> DraftTokens | None:
        matcher = None if op is None or op.decoding is None else op.decoding.matcher
        found = self._found(seq, seq.tokens.array, matcher)
        if found is None:
            return None
        return DraftTokens(_copied(found, most), DraftSource("suffix", _class(found.length)))

    def onward(self, seq: SequenceState, tokens: list[int], matcher: Matcher) -> list[int]:
        """What follows a draft."""
        found = self._found(seq, np.concatenate((seq.tokens.array, np.array(tokens, np.int32))), matcher)
        return [] if found is None else _copied(found, LEAST)

    def learn(self, seq: SequenceState, decoding: RunningGeneration) -> None:
        home, text = (
            suffix_namespace_of(seq),
            seq.tokens.array[max(0, decoding.prompt_tokens - (0 if seq.guarded else LEAD)) :][-TEXT // 2 + 1 :],
        )
        kept = self._finished.setdefault(home, FinishedTexts())
        self._length -= len(kept)
        kept.add(text)
        self._length += len(kept)
        self._finished.move_to_end(home)
        while self._length > ALL_TEXTS:
            self._length -= len(self._finished.popitem(last=False)[1])

    def forget(self) -> None:
        self._finished.clear()
        self._length = 0

    def _found(self, seq: SequenceState, text: Ints, matcher: Matcher | None) -> SuffixMatch | None:
        """The longest match that the text may go on from.

        Under a grammar a single token counts in the text itself only.
        """
        finished = self._finished.get(suffix_namespace_of(seq))
        for length, place, there in earlier_places(
            text, None if finished is None else finished.tokens(), 1 if matcher is None else 2
        ):
            if matcher is None or may_follow(matcher, int(there[place])):
                return SuffixMatch(length, there[place : place + LONGEST])
        return None


def suffix_namespace_of(seq: SequenceState) -> tuple[Space, str]:
    """Whose texts it may be drafted from."""
    return seq.namespace, seq.terms.tenant


def _copied(found: SuffixMatch, most: int) -> list[int]:
    """What follows, before the end of that text."""
    tokens = found.follows[: min(most, max(found.length, LEAST))].tolist()
    return tokens[: tokens.index(END)] if END in tokens else tokens


CLASS_OF = [0, *(max(least for least in CLASSES if least <= length) for length in range(1, LONGEST + 1))]


def _class(length: int) -> int:
    return CLASS_OF[length]


def earlier_places(text: Ints, others: Ints | None, least: int) -> Iterator[Place]:
    """Places after KEY, then fewer, down to one of the last tokens of `text`; in `others` after `least` or more.

    Each time the longest match comes first. The compiled kernels (`csrc/sampling/suffix_lookup.h`) look where they are
    there; `searched` finds the same.
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
