"""A core whose states know what was written: of arrays whose items must all differ, which have infinitely many values.

It drives a core of the network, whose grammar asks by marks (`written.py`) whether an item is new. A state is one of
that core together with the open brackets of the text, the values in them and the value that is being written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sgl.grammars.algebra.byte_marks import BEGIN
from sgl.grammars.automaton.automaton_work_budget import WorkBudget
from sgl.grammars.automaton.distinct_items_masks import DistinctItemsMasks
from sgl.grammars.automaton.distinct_items_states import DistinctItemsHalt, DistinctItemsState, DistinctItemsStates
from sgl.grammars.automaton.distinct_items_viability import DistinctItemsViability
from sgl.grammars.automaton.native_automaton_core import NativeCore
from sgl.grammars.automaton.python_automaton_core import DEAD, PythonCore
from sgl.grammars.automaton.state_closure import CROWDED
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.tokens.vocabulary import Vocabulary

MOST_STATES = 60_000
_ONE_STATE_BYTES = 400


class DistinctItemsCore:
    """The interface of the other cores; see `python_automaton_core.PythonCore`."""

    def __init__(self, core: PythonCore | NativeCore, network: TransitionNetwork, vocabulary: Vocabulary) -> None:
        self._core = core
        self._texts = DistinctItemsStates(core)
        self._viability = DistinctItemsViability(self._texts, network)
        self._masks = DistinctItemsMasks(self._texts, self._viability, vocabulary)
        self._states: list[DistinctItemsState] = []
        self._numbers: dict[DistinctItemsState, int] = {}
        self.extend, self.digest = core.extend, core.digest

    def allow(self, meter: WorkBudget) -> None:
        """As in `python_automaton_core.PythonCore`, but only a hasty meter stops early:
        what is stopped has to start again.
        """
        self._inner = WorkBudget(meter.left if meter.hasty else meter.most - meter.spent, meter.hasty)
        self._texts.allow(meter)
        self._core.allow(self._inner)

    def charge(self, meter: WorkBudget) -> None:
        self._texts.charge()
        self._core.charge(self._inner)
        meter.spend(self._inner.spent)

    @property
    def wanted(self) -> int:
        return self._core.wanted

    def memory(self) -> int:
        return self._core.memory() + len(self._states) * _ONE_STATE_BYTES

    def size(self) -> int:
        return max(self._core.size(), len(self._states))

    def held(self) -> int:
        return self._core.held()

    def _guarded(self, work: Callable[[], int]) -> int:
        try:
            return work()
        except DistinctItemsHalt as halt:
            return halt.code

    def _number(self, text: DistinctItemsState | None) -> int:
        if text is None:
            return DEAD
        found = self._numbers.get(text)
        if found is None:
            if len(self._states) >= MOST_STATES:
                return CROWDED
            found = self._numbers[text] = len(self._states)
            self._states.append(text)
        return found

    def start(self) -> int:
        base = self._core.start()
        return (
            base
            if base < 0
            else self._guarded(lambda: self._number(DistinctItemsState(self._texts.base(base, BEGIN), b"", None)))
        )

    def step(self, state: int, byte: int) -> int:
        return self.advance(state, bytes((byte,)))

    def advance(self, state: int, data: bytes) -> int:
        return self._guarded(lambda: self._number(self._advanced(self._states[state], data)))

    def _advanced(self, text: DistinctItemsState | None, data: bytes) -> DistinctItemsState | None:
        for byte in data:
            if text is None:
                return None
            text = self._texts.step(text, byte)
        return text if text is not None and self._viability.of(text) else None

    def accepting(self, state: int) -> bool:
        text = self._states[state]
        return text.open is None and self._core.accepting(text.base)

    def canonical(self, state: int) -> int:
        return state

    def either(self, left: int, right: int) -> int:
        raise AssertionError("a grammar that remembers speaks of no tokens")

    def takes_plain(self, state: int) -> bool:
        return False

    def live(self, state: int) -> int:
        text = self._states[state]
        return sum(
            1 << byte for byte in self._viability.bytes_after(text) if self._advanced(text, bytes((byte,))) is not None
        )

    def mask(self, state: int, out: np.ndarray) -> int:
        try:
            self._masks.fill(self._states[state], out)
        except DistinctItemsHalt as halt:
            return halt.code
        if self.accepting(state):
            out |= self._masks.vocabulary.eos_row
        return self.digest(out)

    def rows(self, states: np.ndarray, out: np.ndarray) -> int:
        """No rows: what follows depends on what was written, so it has no tables on a device."""
        return CROWDED

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        found = bytearray()
        try:
            while len(found) < most and not self.accepting(state):
                after = self._viability.bytes_after(self._states[state])
                if len(after) > 1 or not after:
                    break
                state = self.step(state, after[0])
                if state < 0:
                    return bytes(found), state
                found.append(after[0])
        except DistinctItemsHalt as halt:
            return bytes(found), halt.code
        return bytes(found), state

    def shortest_end(self, state: int) -> bytes:
        """A short text that leads from a state to an end; Raises GrammarLimitError where none is found soon."""
        return self._viability.end(self._states[state], self.accepting_text)

    def accepting_text(self, text: DistinctItemsState) -> bool:
        return text.open is None and self._core.accepting(text.base)
