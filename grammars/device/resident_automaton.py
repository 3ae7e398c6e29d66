"""One automaton's states among those of a device's pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.device.device_grammar_tables import StateUpload
from sgl.grammars.device.device_state_codes import DEAD, ENDED, UNKNOWN
from sgl.grammars.errors import GrammarError


class StateNumbers:
    """The numbers of a pool's states, given one after another until the pool starts over."""

    def __init__(self, most: int) -> None:
        self.round = -1
        self._most = most
        self.start_over()

    @property
    def left(self) -> int:
        return self._most - len(self._owners)

    @property
    def roomy(self) -> bool:
        """Whether there is room for states that are not needed yet."""
        return self.left > self._most // 8

    def take(self, resident: ResidentAutomaton, state: int) -> int:
        self._owners.append((resident, state))
        return len(self._owners) - 1

    def owner(self, number: int) -> tuple[ResidentAutomaton, int]:
        """Whose state has a number, and which state it is."""
        return self._owners[number]

    def start_over(self) -> None:
        self.round += 1
        self._owners: list[Any] = [None] * (ENDED + 1)


class ResidentAutomaton:
    """An automaton and the numbers that its states have in a pool.

    A state with a number may not be on the device yet; such states wait in line, those that are needed soon first.
    """

    def __init__(self, automaton: Automaton, numbers: StateNumbers) -> None:
        self.automaton = automaton
        self._pool = numbers
        self._forget()

    def _forget(self) -> None:
        self._round = self._pool.round
        self._numbers = np.full(256, UNKNOWN, np.int32)
        self._alike: dict[int, int] = {}
        self._done: set[int] = set()
        self._waiting: deque[int] = deque()

    def number(self, state: int) -> int:
        """The number of a state that has one."""
        return int(self._numbers[state])

    def canonical(self, state: int) -> int:
        """The automaton's state that stands for all with the same mask."""
        found = self._alike.get(state)
        if found is None:
            with self.automaton.lock:
                found = self._alike[state] = self.automaton.alike(state)
        return found

    def reserve(self, state: int) -> bool:
        """Give numbers to a state and its canonical one; False where the pool is full."""
        if self._round != self._pool.round:
            self._forget()
        fresh = [each for each in {state, self.canonical(state)} if self._at(each) == UNKNOWN]
        if len(fresh) > self._pool.left:
            return False
        for each in fresh:
            self._numbers[each] = self._pool.take(self, each)
        return True

    def upload(self, states: Iterable[int], soon: bool = True) -> StateUpload:
        """What the device lacks of reserved states; `soon`: what they lead to is next in line."""
        needed = {each for state in states for each in (state, self.canonical(state))}
        missing = np.array(sorted(needed - self._done), np.int32)
        targets = self._rows(missing)
        self._follow(np.unique(targets[targets >= 0]), soon)
        self._done.update(missing.tolist())
        return StateUpload(
            self._numbers[missing],
            np.where(targets >= 0, self._numbers[targets], targets),
            np.array([self.automaton.final(state) for state in missing.tolist()], np.int32),
            self._numbers[[self.canonical(state) for state in missing.tolist()]],
        )

    def path(self, state: int, token: int) -> StateUpload:
        """What a token passes through, whole again: some targets may have had no number when they were uploaded."""
        passed: list[int] = []
        for byte in self.automaton.vocabulary.tokens[token]:
            if state == DEAD or not self.reserve(state):
                break
            passed.append(state)
            state = self.automaton.advance(state, bytes([byte]))
        self._done.difference_update(passed)
        return self.upload(passed)

    def grow(self, most: int) -> StateUpload:
        """At most about `most` of the states that wait."""
        batch: list[int] = []
        while len(batch) < most and self._may_grow():
            state = self._waiting.popleft()
            if state not in self._done and self.reserve(state):
                batch.append(state)
        return self.upload(batch, soon=False)

    def _may_grow(self) -> bool:
        """Whether states wait, and neither the pool nor the automaton becomes crowded by them."""
        machine = self.automaton
        quiet = machine.core.size() < machine.limit // 16
        return bool(self._waiting) and self._round == self._pool.round and self._pool.roomy and quiet

    def _at(self, state: int) -> int:
        if state >= len(self._numbers):
            room = np.full(max(state + 1, 2 * len(self._numbers)), UNKNOWN, np.int32)
            room[: len(self._numbers)] = self._numbers
            self._numbers = room
        return int(self._numbers[state])

    def _rows(self, states: np.ndarray) -> np.ndarray:
        """int32 [n, 256]: the automaton's targets; UNKNOWN where its limits are met, as the host will say itself."""
        machine = self.automaton
        found = np.full((len(states), 256), UNKNOWN, np.int32)
        with suppress(GrammarError), machine.lock:
            while (code := machine.core.rows(states, found)) < DEAD:
                machine._mend(code)
        return found

    def _follow(self, targets: np.ndarray, soon: bool) -> None:
        """Give numbers to the states that rows lead to, while there is room, and let them wait for their own rows."""
        fresh = [state for state in targets.tolist() if self._at(state) == UNKNOWN]
        if not self._pool.roomy:
            return
        fresh = fresh[: self._pool.left]
        for state in fresh:
            self._numbers[state] = self._pool.take(self, state)
        if soon:
            self._waiting.extendleft(reversed(fresh))
        else:
            self._waiting.extend(fresh)
