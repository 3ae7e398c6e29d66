"""The memo of mask rows of one automaton, bounded in bytes, approximately least recently used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sgl.grammars.tokens.vocabulary import Vocabulary

MOST_BYTES = 64 << 20
MOST_STATES = 100_000


class MaskCache:
    """Rows by state. Two generations: a row of the old one that is used again moves to the young one.

    What is bounded is the distinct rows of a generation (`_fresh`, by identity), as many states share a row.

    Equal rows are one object, so that a caller may keep device copies by identity (and should keep a reference
    to the row as long as it does).
    """

    def __init__(
        self, vocabulary: Vocabulary, digest: Callable[[np.ndarray], int], most_bytes: int = MOST_BYTES
    ) -> None:
        self._words = vocabulary.words
        self._most = max(most_bytes // (2 * 4 * max(vocabulary.words, 1)), 16)
        self.scratch = np.zeros(self._words, np.uint32)
        self.young: dict[int, np.ndarray] = {}
        self._old: dict[int, np.ndarray] = {}
        self._fresh: set[int] = set()
        self._rows: dict[int, list[tuple[bytes, np.ndarray]]] = {}
        self._count = 0
        self.end = self._shared(vocabulary.eos_row, digest(vocabulary.eos_row))

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    @property
    def memory(self) -> int:
        """Bytes of the rows remembered; equal rows are one."""
        return self._count * 4 * self._words

    def add(self, state: int, row: np.ndarray, digest: int) -> np.ndarray:
        """Keep a copy of a row, or the one like it that is there; the row to hand out."""
        shared = self._shared(row, digest)
        self.keep(state, shared)
        return shared

    def get(self, state: int) -> np.ndarray | None:
        """int32 [words], read-only, or None where it must be worked out."""
        row = self.young.get(state)
        if row is None:
            row = self._old.get(state)
            if row is not None:
                self.keep(state, row)
        return row

    def _shared(self, row: np.ndarray, digest: int) -> np.ndarray:
        data = row.tobytes()
        alike = self._rows.setdefault(digest, [])
        for known, found in alike:
            if known == data:
                return found
        made = np.frombuffer(data, np.int32)
        alike.append((data, made))
        self._count += 1
        return made

    def keep(self, state: int, row: np.ndarray) -> None:
        """Remember a row that is handed out already for one more state."""
        if len(self._fresh) >= self._most or len(self.young) >= MOST_STATES:
            self._old, self.young = self.young, {}
            self._forget(self._fresh | {id(row), id(self.end)})
            self._fresh = set()
        self.young[state] = row
        self._fresh.add(id(row))

    def _forget(self, kept: set[int]) -> None:
        """Let go of all rows but those of some identities."""
        rows = {key: [pair for pair in alike if id(pair[1]) in kept] for key, alike in self._rows.items()}
        self._rows = {key: alike for key, alike in rows.items() if alike}
        self._count = sum(map(len, self._rows.values()))
