"""The automaton of the pieces of a text, in the plainest way: the reference of that in C, and its fallback.

A state is the set of the places that what was read so far may have come to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DEAD = -1


class PythonPieceAutomaton:
    """Over the bytes of the spellings of a text's characters. State 0 is the start."""

    def __init__(self, spellings: Sequence[bytes], starts: np.ndarray, ends: np.ndarray) -> None:
        self._text = np.frombuffer(b"".join(spellings), np.uint8)
        offsets = np.cumsum([0, *map(len, spellings)])
        self._ends = np.zeros(len(self._text) + 1, bool)
        self._ends[offsets[np.flatnonzero(ends)]] = True
        last = int(np.flatnonzero(self._ends)[-1]) if self._ends.any() else 0
        begin = offsets[np.flatnonzero(starts)]
        self._states = [begin[begin < last]]
        self._known = {self._states[0].tobytes(): 0}
        self._last = last

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte, or DEAD."""
        at = self._states[state]
        at = at[at < self._last]
        moved = at[self._text[at] == byte] + 1
        if not len(moved):
            return DEAD
        found = self._known.setdefault(moved.tobytes(), len(self._states))
        if found == len(self._states):
            self._states.append(moved)
        return found

    def ends(self, state: int) -> bool:
        """Whether a piece may end here."""
        return state > 0 and bool(self._ends[self._states[state]].any())

    def live(self, state: int) -> int:
        """The bytes that may come next, as a set of bits."""
        at = self._states[state]
        return sum(1 << int(byte) for byte in np.unique(self._text[at[at < self._last]]))

    def end(self, state: int) -> bytes:
        """The bytes of a shortest way to the end of a piece."""
        at = self._states[state]
        ends = np.flatnonzero(self._ends)
        after = ends[np.searchsorted(ends, at, side="right" if state == 0 else "left")]
        best = int(np.argmin(after - at))
        return self._text[at[best] : after[best]].tobytes()
