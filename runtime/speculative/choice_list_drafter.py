"""Drafts of a grammar's choices that the text names before: a prompt lists the fields of a schema in their order.

Where few tokens are allowed, those that follow the same token in the text are the items of a list. The first of them
that may still come is drafted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ..layers import cpu_kernels
from ..sequences.draft_tokens import DraftSource, DraftTokens
from .drafter import may_build_states

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..cache import Ints
    from ..sequences.ops.generate_op import Generate
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import SequenceState

FEW = 256  # tokens that a grammar allows: some for each choice, as its beginnings are allowed too
PLACES = 512  # the first in the text that are looked at
TOKENS = 7  # of a draft


class ListDrafter:
    def propose(self, seq: SequenceState, op: Generate, most: int) -> DraftTokens | None:
        matcher = None if op.decoding is None else op.decoding.matcher
        tokens = [] if matcher is None else self.onward(seq, [], matcher)
        return DraftTokens(tokens[:most], DraftSource("named")) if tokens else None

    def onward(self, seq: SequenceState, tokens: list[int], matcher: Matcher) -> list[int]:
        """What follows a draft."""
        mask = matcher.mask() if may_build_states(matcher) else matcher.known_mask()
        text = seq.tokens.array
        place = 0 if mask is None else find_listed_value(text, mask)
        return text[place : place + TOKENS].tolist() if place else []

    def learn(self, seq: SequenceState, decoding: RunningGeneration) -> None:
        """The text itself says it."""

    def forget(self) -> None:
        """Nothing is kept."""


def find_listed_value(text: Ints, mask: np.ndarray) -> int:
    """Where in the text a list begins of what a mask allows; 0: nowhere, or it allows one token or more than FEW."""
    return searched(text, mask) if cpu_kernels.kernels is None else cpu_kernels.kernels.named(text, mask, FEW)


def searched(text: Ints, mask: np.ndarray) -> int:
    """The same by plain Python."""
    if not 1 < int.from_bytes(mask.tobytes()).bit_count() <= FEW:
        return 0
    return first_item(
        text, np.flatnonzero((text >> 5 < len(mask)) & (mask[np.minimum(text >> 5, len(mask) - 1)] >> (text & 31) & 1))
    )


def first_item(text: Ints, places: np.ndarray) -> int:
    """Of places in a text the first one after the token that most different ones follow; 0: there are none."""
    places = places[places > 0][:PLACES]
    before, items = text[places - 1].tolist(), text[places].tolist()
    if not before:
        return 0
    [(marker, _)] = Counter(mark for mark, _ in dict.fromkeys(zip(before, items, strict=True))).most_common(1)
    return int(places[before.index(marker)])
