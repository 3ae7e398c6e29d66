"""What a head has computed of the sequences that it drafts for: from their tokens and the target's states of these.

A head's place i represents the token i + 1 and the target's state of token i. A state is there only where the target
has computed the token since. After a prefix that was cached, a shadow goes on where another one of the same prefix left
off. It then uses the next state for that of the prefix's last token, which was not kept. Otherwise it begins where the
states begin. What a chain has computed is computed again, from the target's states, when its tokens were kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cache import Ints, PrefixCache, common_prefix
from ..sequences.op_future import note
from ..sequences.sequence_state import ScheduledWork, SequenceState
from .draft_model_state import PATIENCE, DraftModelStates

SPARE = 2  # times the memory of some states, that is held for them at most
MOST = 512  # states of earlier steps that are kept of a sequence that is not drafted for


class TargetHiddenStates(NamedTuple):
    """The target's of a sequence's tokens from `first` on, [n, width].

    tokens: of which tokens they are.  seen: the round.
    """

    first: int
    rows: Tensor
    tokens: Ints
    seen: int

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    def part(self, first: int, end: int) -> TargetHiddenStates:
        """Those of tokens first .. end, which are there; the memory of the others is not held for a few."""
        rows = self.rows[first - self.first : end - self.first]
        if rows.untyped_storage().nbytes() > SPARE * rows.nbytes:
            rows = rows.clone()
        return TargetHiddenStates(first, rows, self.tokens[first - self.first : end - self.first], self.seen)

    def of(self, tokens: Ints) -> TargetHiddenStates:
        """As far as they are of these tokens of a text, which may have been written anew since."""
        return self.part(self.first, self.first + common_prefix(self.tokens, tokens[self.first :]))


class DraftHeadStates(DraftModelStates):
    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._states: dict[int, TargetHiddenStates] = {}
        self._start: dict[int, int] = {}  # the place of a shadow's first token
        self._sound: dict[int, int] = {}  # tokens of a shadow that were computed from the target's states
        self._patched: set[int] = set()  # with a state used in place of another: nothing that others go on from
        self._own: dict[int, Tensor] = {}  # the head's state at the end of a chain, [1, hidden]

    def observe(self, work: list[ScheduledWork], rows: Tensor) -> None:
        """A step of the target has these states, [tokens, width], in the order of its work. No step fails for them."""
        try:
            self._observe(work, rows)
        except Exception as error:
            self._states.clear()
            note("a head's states are lost", error)

    def _observe(self, work: list[ScheduledWork], rows: Tensor) -> None:
        first = 0
        for seq, lo, hi in work:
            text = seq.tokens.reaching(hi)
            new, first = (
                TargetHiddenStates(lo, rows[first : first + hi - lo], text[lo:].copy(), self._round).part(lo, hi),
                first + hi - lo,
            )
            before = self._states.get(seq.id)
            if before is not None and before.first < lo <= before.of(text).end and lo - before.first <= MOST:
                before = before.part(before.first, lo)
                new = TargetHiddenStates(
                    before.first,
                    torch.cat([before.rows, new.rows]),
                    np.concatenate([before.tokens, new.tokens]),
                    self._round,
                )
            self._states[seq.id] = new

    def begin(self) -> None:
        super().begin()
        for number in [number for number, each in self._states.items() if each.seen < self._round - PATIENCE]:
            del self._states[number]

    def follow(self, owner: SequenceState) -> SequenceState | None:
        """None where states are lacking for what follows next."""
        states = self._states.get(owner.id)
        if states is None or states.first >= owner.computed:
            return None
        states = states.of(owner.tokens.array[: owner.computed])
        if not len(states.rows):
            return None
        draft_state = self._draft_state(
            owner, owner.terms._replace(namespace=f"{owner.terms.namespace}\0{owner.tokens.array[0]}")
        )
        start = self._start.setdefault(owner.id, 0)
        if start >= owner.computed:  # it was rewound to before where this began
            self._release(draft_state)
            start = self._start[owner.id] = 0
        tokens = owner.tokens.array[start + 1 : owner.computed + 1]
        self._keep(
            draft_state,
            tokens,
            min(common_prefix(draft_state.tokens.array, tokens), self._sound.setdefault(owner.id, 0)),
        )
        if not (len(draft_state.slots) or start):
            self.cache.attach(draft_state, len(tokens) - 1)
        if not start and 0 < draft_state.computed == states.first - 1:
            self._patched.add(owner.id)
            tokens = owner.tokens.array[states.first - 1 : states.end].copy()
            states = TargetHiddenStates(
                states.first - 1, torch.cat([states.rows[:1], states.rows]), tokens, states.seen
            )
        if start + draft_state.computed < states.first:
            self._release(draft_state)
            start = self._start[owner.id] = states.first
            draft_state.tokens.truncate(0)
            draft_state.tokens.extend(owner.tokens.array[start + 1 : owner.computed + 1])
        self._sound[owner.id] = draft_state.computed
        states = self._cut(owner, states, start + draft_state.computed)
        return draft_state if states.end == owner.computed else None

    def forget(self) -> None:
        super().forget()
        self._states.clear()

    def reach(self, owner: SequenceState) -> bool:
        return owner.computed == len(owner) - 1

    def rejoin(self, draft_state: SequenceState) -> None:
        if self._is_whole(draft_state):
            super().rejoin(draft_state)

    def publish(self, draft_state: SequenceState) -> None:
        if self._is_whole(draft_state):
            super().publish(draft_state)

    def given(self, work: list[ScheduledWork]) -> Tensor:
        """The states that the head reads, in the order of its work: the target's, or at the end of a chain its own."""
        found = []
        for draft_state, lo, hi in work:
            states, start = self._states[draft_state.id], self._start[draft_state.id]
            if start + hi <= states.end:
                found.append(states.rows[start + lo - states.first : start + hi - states.first])
                self._sound[draft_state.id] = hi
            else:
                found.append(self._own[draft_state.id])
        return torch.cat(found)

    def made(self, work: list[ScheduledWork], rows: Tensor) -> None:
        """The head's states of those whose logits were wanted."""
        ends = [draft_state.id for draft_state, _, hi in work if hi == len(draft_state)]
        self._own |= {number: rows[index : index + 1] for index, number in enumerate(ends)}

    def _cut(self, owner: SequenceState, states: TargetHiddenStates, first: int) -> TargetHiddenStates:
        """Those of tokens that are there, from the first on that will be read."""
        first = min(max(first, states.first), states.end)
        kept = self._states[owner.id] = states.part(first, max(first, min(owner.computed, states.end)))
        return kept

    def _release(self, draft_state: SequenceState) -> None:
        self.cache.cut(draft_state, min(draft_state.computed, self._sound.get(draft_state.id, 0)))
        self.cache.release(draft_state, publish=self._is_whole(draft_state))
        self._patched.discard(draft_state.id)

    def _is_whole(self, draft_state: SequenceState) -> bool:
        """Whether others may go on from it, and it from others."""
        return not self._start.get(draft_state.id) and draft_state.id not in self._patched

    def _dropped(self, number: int) -> None:
        for kept in (self._start, self._sound, self._own):
            kept.pop(number, None)
