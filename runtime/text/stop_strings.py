"""Finding stop strings in text that comes in pieces: an Aho-Corasick automaton over characters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


class StopStrings:
    """Immutable, shared by all scans. State 0 is the start; `depth[s]` characters may begin a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.depth = [0]
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._ends: list[tuple[int, ...]] = [()]
        for index, stop in enumerate(self.stops):
            self._insert(index, stop)
        self._link()
        self._first = frozenset(self._next[0])

    def _insert(self, index: int, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self.depth)
                self.depth.append(self.depth[state] + 1)
                self._next.append({})
                self._fail.append(0)
                self._ends.append(())
            state = self._next[state][char]
        self._ends[state] += (index,)

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], char)
                self._ends[child] += self._ends[self._fail[child]]
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while (target := self._next[state].get(char)) is None:
            if not state:
                return 0
            state = self._fail[state]
        return target

    def scan(self, state: int, text: str) -> tuple[int, StopMatch | None]:
        """Read `text` from `state`: the state after it and the stop found, if any.

        Of several stops the one earliest in the list wins, at its first occurrence.
        """
        if not state and self._first.isdisjoint(text):
            return 0, None
        best: StopMatch | None = None
        for end, char in enumerate(text, 1):
            state = self.step(state, char)
            for index in self._ends[state]:
                if best is None or index < best.index:
                    best = StopMatch(index, self.stops[index], end - len(self.stops[index]), end)
        return state, best


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` is at [start, end) of the scanned text; start is negative when it began before it."""

    index: int
    stop: str
    start: int
    end: int
