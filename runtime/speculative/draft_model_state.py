"""What a draft model has computed of the sequences that it drafts for, in its own pages.

A shadow is a sequence of the draft model. It is not informed of what becomes of its owner: each time it is asked for,
it keeps what it has in common with the owner's tokens. So rewinds, jumps, aborts, preemption and dropped drafts need
nothing here. What forks and later texts share comes from its own tree of prefixes. These pages are not those of the
target's cache under other names. What that has of a prefix may have come from main memory, or from a step that the
draft model took no part in.
"""

from __future__ import annotations

from collections import deque

from ..cache import Ints, PrefixCache, common_prefix
from ..sequences.sequence_options import SequenceOptions
from ..sequences.sequence_state import SequenceOp, SequenceState, SequenceStatus

PATIENCE = 16  # rounds that a shadow keeps its pages while its owner is not computed


class DraftTokenOp(SequenceOp):
    """Wants the logits after the last token."""

    def rows(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(hi - 1, hi) if hi == len(seq) else range(0)


class DraftModelStates:
    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self._of: dict[int, SequenceState] = {}  # by the owner's id
        self._seen: dict[int, int] = {}  # the round in which it was asked for last
        self._round = 0

    def begin(self) -> None:
        """A round begins: those that were not asked for in a while give their pages back."""
        self._round += 1
        self._drop(self._round - PATIENCE)

    def follow(self, owner: SequenceState) -> SequenceState | None:
        """The shadow with all the owner's tokens: the last is yet to be computed, those before it as far as known.

        None where it cannot be computed now.
        """
        draft_state, tokens = self._draft_state(owner, owner.terms), owner.tokens.array
        self._keep(draft_state, tokens, common_prefix(draft_state.tokens.array, tokens))
        if not len(draft_state.slots):
            self.cache.attach(draft_state, len(tokens) - 1)
        return draft_state

    def reach(self, owner: SequenceState) -> bool:
        """Whether what follows on a shadow is what follows on its owner."""
        return True

    def rejoin(self, draft_state: SequenceState) -> None:
        """Have it go on along what others computed of its tokens."""
        self.cache.rejoin(draft_state, len(draft_state) - 1)

    def publish(self, draft_state: SequenceState) -> None:
        """Let others go on from what is computed of it."""
        self.cache.publish(draft_state)

    def grow(self, draft_state: SequenceState, length: int) -> bool:
        """Give it pages for so many tokens, if need be those of shadows that are not in this round."""
        if self.cache.grow(draft_state, length):
            return True
        self._drop(self._round)
        return self.cache.grow(draft_state, length)

    def forget(self) -> None:
        self._drop(self._round + 1)
        self.cache.flush()

    def check(self) -> None:
        """Raise unless the pages, the tree and the shadows agree."""
        self.cache.check([self.cache.pages(draft_state) for draft_state in self._of.values()], self._of.values())

    def _drop(self, before: int) -> None:
        """Those that were last asked for in earlier rounds."""
        for number in [number for number, seen in self._seen.items() if seen < before]:
            draft_state = self._of.pop(number)
            del self._seen[number]
            self._release(draft_state)
            self._dropped(number)
            draft_state.status = SequenceStatus.CLOSED

    def _draft_state(self, owner: SequenceState, terms: SequenceOptions) -> SequenceState:
        draft_state = self._of.get(owner.id)
        if draft_state is None:
            draft_state = self._of[owner.id] = SequenceState(owner.id, terms)
            draft_state.ops = deque([DraftTokenOp()])
        self._seen[owner.id] = self._round
        return draft_state

    def _keep(self, draft_state: SequenceState, tokens: Ints, same: int) -> None:
        """Its first `same` tokens, the last of all never computed; then it has these tokens."""
        same = min(same, len(tokens) - 1)
        if draft_state.computed > same:
            self.cache.cut(draft_state, same)
        draft_state.tokens.truncate(same)
        draft_state.tokens.extend(tokens[same:])

    def _release(self, draft_state: SequenceState) -> None:
        self.cache.release(draft_state)

    def _dropped(self, number: int) -> None:
        """That of an owner is gone."""
