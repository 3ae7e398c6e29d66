"""Where the steps of a sequence end so that a state is left there for others, of models that keep states.

A step leaves one state of each sequence, that after its last token. Others can go on from a prefix only where one was
left. That is after a prompt but for its last token, where prompts were seen to part, and every so many tokens of a long
one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ..cache import PrefixCache, common_prefix
from ..sequences.sequence_state import SequenceState

WORTH_A_STEP = 32  # tokens of a prompt; for fewer no step ends before the prompt does
NOWHERE = sys.maxsize


class CheckpointPositions:
    """every: tokens between the states that a long prompt leaves.  kept: whether the model keeps any."""

    def __init__(self, cache: PrefixCache, every: int) -> None:
        size = cache.pool.page_size
        self.kept, self._size, self._every = cache.trails is not None, size, -(-every // size) * size

    def next(self, seq: SequenceState) -> int:
        """The length after which its next step ends at the latest."""
        if not self.kept:
            return NOWHERE
        done = seq.computed
        found = [done - done % self._every + self._every]
        if seq.branch > done:
            found.append(seq.branch)
        if (end := self._end(seq)) - done >= WORTH_A_STEP:
            found.append(end)
        return min(found)

    def last(self, seq: SequenceState, length: int) -> int:
        """The longest of its first `length` tokens or fewer after which a prefill leaves a state, 0 for none."""
        if not self.kept:
            return length
        found = (length - length % self._every, seq.branch, self._end(seq))
        return max((border for border in found if border <= length), default=0)

    def part(self, seq: SequenceState, others: Iterable[SequenceState]) -> None:
        """Have a new request leave a state where it parts from what others are just computing."""
        if not self.kept:
            return
        for other in others:
            if other is not seq and other.namespace == seq.namespace:
                shared = common_prefix(seq.tokens.array, other.tokens.array)
                shared -= shared % self._size
                if seq.computed + WORTH_A_STEP <= shared < len(seq) and shared > seq.branch:
                    seq.branch = shared

    def _end(self, seq: SequenceState) -> int:
        """The same prompt needs its last token computed, for the logits."""
        end = len(seq) - 1
        return end - end % self._size
