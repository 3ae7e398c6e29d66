"""What a head has computed of the sequences that it drafts for: from their tokens and from the target's states of these.

A head's place i stands for the token i + 1 and the target's state of token i. A state is there only where the target has computed the
token since: behind a prefix that was cached, a shadow goes on where another one of the same prefix left off, with the next state
for that of the prefix's last token, which nobody kept; or else it begins where the states begin. What a chain left behind is computed again, from the target's states, when its tokens were kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import PrefixCache, common_prefix
from ..sequences.outcome import note
from ..sequences.sequence import SequenceState, Work
from .shadow import PATIENCE, Shadows

MOST = 512  # states of earlier steps that are kept of a sequence that is not drafted for


class States(NamedTuple):
    """The target's of a sequence's tokens from `first` on, [n, width]. seen: the round."""

    first: int
    rows: Tensor
    seen: int

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class HeadShadows(Shadows):
    def __init__(self, cache: PrefixCache) -> None:
        super().__init__(cache)
        self._states: dict[int, States] = {}
        self._start: dict[int, int] = {}  # the place of a shadow's first token
        self._sound: dict[int, int] = {}  # tokens of a shadow that were computed from the target's states
        self._patched: set[int] = set()  # with a state that stands for another one: nothing that others go on from
        self._own: dict[int, Tensor] = {}  # the head's state at the end of a chain, [1, hidden]

    def observe(self, work: list[Work], rows: Tensor) -> None:
        """A step of the target has these states, [tokens, width], in the order of its work. No step fails for them."""
        try:
            self._observe(work, rows)
        except Exception as error:
            self._states.clear()
            note("a head's states are lost", error)

    def _observe(self, work: list[Work], rows: Tensor) -> None:
        first = 0
        for seq, lo, hi in work:
            own, first = rows[first : first + hi - lo], first + hi - lo
            before = self._states.get(seq.id)
            if before is not None and before.first <= lo <= before.end and lo - before.first <= MOST:
                lo, own = before.first, torch.cat([before.rows[: lo - before.first], own])
            self._states[seq.id] = States(lo, own, self._round)

    def begin(self) -> None:
        super().begin()
        for number in [number for number, each in self._states.items() if each.seen < self._round - PATIENCE]:
            del self._states[number]

    def follow(self, owner: SequenceState) -> SequenceState | None:
        """None where states are lacking for what follows next."""
        states = self._states.get(owner.id)
        if states is None or states.first >= owner.computed:
            return None
        shadow = self._shadow(owner, owner.terms._replace(namespace=f"{owner.terms.namespace}\0{owner.tokens.array[0]}"))
        start = self._start.setdefault(owner.id, 0)
        if start >= owner.computed:  # it was rewound to before where this began
            self._release(shadow)
            start = self._start[owner.id] = 0
        tokens = owner.tokens.array[start + 1 : owner.computed + 1]
        self._keep(shadow, tokens, min(common_prefix(shadow.tokens.array, tokens), self._sound.setdefault(owner.id, 0)))
        if not (len(shadow.slots) or start):
            self.cache.attach(shadow, len(tokens) - 1)
        if not start and 0 < shadow.computed == states.first - 1:
            self._patched.add(owner.id)
            states = States(states.first - 1, torch.cat([states.rows[:1], states.rows]), states.seen)
        if start + shadow.computed < states.first:
            self._release(shadow)
            start = self._start[owner.id] = states.first
            shadow.tokens.truncate(0)
            shadow.tokens.extend(owner.tokens.array[start + 1 : owner.computed + 1])
        self._sound[owner.id] = shadow.computed
        states = self._cut(owner, states, start + shadow.computed)
        return shadow if states.end == owner.computed else None

    def forget(self) -> None:
        super().forget()
        self._states.clear()

    def reach(self, owner: SequenceState) -> bool:
        return owner.computed == len(owner) - 1

    def rejoin(self, shadow: SequenceState) -> None:
        if self._is_whole(shadow):
            super().rejoin(shadow)

    def publish(self, shadow: SequenceState) -> None:
        if self._is_whole(shadow):
            super().publish(shadow)

    def given(self, work: list[Work]) -> Tensor:
        """The states that the head reads, in the order of its work: the target's, or at the end of a chain its own."""
        found = []
        for shadow, lo, hi in work:
            states, start = self._states[shadow.id], self._start[shadow.id]
            if start + hi <= states.end:
                found.append(states.rows[start + lo - states.first : start + hi - states.first])
                self._sound[shadow.id] = hi
            else:
                found.append(self._own[shadow.id])
        return torch.cat(found)

    def made(self, work: list[Work], rows: Tensor) -> None:
        """The head's states of those whose logits were wanted."""
        ends = [shadow.id for shadow, _, hi in work if hi == len(shadow)]
        self._own |= {number: rows[index : index + 1] for index, number in enumerate(ends)}

    def _cut(self, owner: SequenceState, states: States, first: int) -> States:
        """Those of tokens that are there, from the first on that will be read."""
        first = min(max(first, states.first), states.end)
        kept = States(first, states.rows[first - states.first : owner.computed - states.first], states.seen)
        self._states[owner.id] = kept
        return kept

    def _release(self, shadow: SequenceState) -> None:
        self.cache.cut(shadow, min(shadow.computed, self._sound.get(shadow.id, 0)))
        self.cache.release(shadow, publish=self._is_whole(shadow))
        self._patched.discard(shadow.id)

    def _is_whole(self, shadow: SequenceState) -> bool:
        """Whether others may go on from it, and it from others."""
        return not self._start.get(shadow.id) and shadow.id not in self._patched

    def _dropped(self, number: int) -> None:
        for kept in (self._start, self._sound, self._own):
            kept.pop(number, None)
