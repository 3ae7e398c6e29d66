"""The memo of mask rows of one automaton, bounded in bytes, approximately least recently used."""

from __future__ import annotations

import numpy as np

from sgl.grammars.vocabulary import Vocabulary

MOST_BYTES = 16 << 20


class MaskMemo:
    """Rows by state. Two generations: a row of the old one that is used again moves to the young one.

    Equal rows are one object, so that a caller may keep device copies by identity (and should keep a reference
    to the row as long as it does).
    """

    def __init__(self, vocabulary: Vocabulary, most_bytes: int = MOST_BYTES) -> None:
        self._words = vocabulary.words
        self._eos = vocabulary.eos_row
        self._most = max(most_bytes // (2 * 4 * max(vocabulary.words, 1)), 16)
        self.young: dict[int, np.ndarray] = {}
        self._old: dict[int, np.ndarray] = {}
        self._rows: dict[bytes, np.ndarray] = {}
        self.end = self._shared(self._eos)

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def blank(self) -> np.ndarray:
        return np.zeros(self._words, np.uint32)

    def add(self, state: int, row: np.ndarray, final: bool) -> np.ndarray:
        """Keep a row, with the end-of-sequence bits where the text may end; the row to hand out."""
        if final:
            row |= self._eos
        shared = self._shared(row)
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

    def _shared(self, row: np.ndarray) -> np.ndarray:
        key = row.tobytes()
        found = self._rows.get(key)
        if found is None:
            found = np.frombuffer(key, np.int32)
            self._rows[key] = found
        return found

    def keep(self, state: int, row: np.ndarray) -> None:
        """Remember a row that is handed out already for one more state."""
        if len(self.young) >= self._most:
            self._old, self.young = self.young, {}
            kept = {id(r): r for r in self._old.values()}
            self._rows = {key: r for key, r in self._rows.items() if id(r) in kept}
        self.young[state] = row
