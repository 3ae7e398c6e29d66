"""Whether the KV pool holds at once what several sequences compute next, without an estimate of how long they get."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..cache import PrefixCache
from ..errors import note_sequence
from ..sequences.sequence_state import SequenceState


class KVCapacity:
    """The pages of those that keep their place, and how many they lack for their targets.

    While these get what they lack, the sum of both stays as it is: a Room is good until somebody comes or goes.
    """

    def __init__(self, cache: PrefixCache, pinned: Iterable[SequenceState], keep: Iterable[SequenceState]) -> None:
        self._cache = cache
        self._held = np.zeros(self._cache.pool.total + 1, bool)
        self._lacking = 0
        try:
            for seq in keep:
                self._cache.mark(seq, self._held)
                self._lacking += self._cache.missing(seq, seq.target)
            for seq in pinned:
                self._cache.mark(seq, self._held)
        except BaseException as error:
            note_sequence(error, seq)
            raise

    def has(self, seq: SequenceState) -> bool:
        """Whether what `seq` computes next fits too; pages that it shares with the others count once."""
        held, lacking = self._held.copy(), self._lacking + self._cache.missing(seq, seq.target)
        if len(seq.slots):
            self._cache.mark(seq, held)
        else:
            cached = self._cache.cached_pages(seq, seq.ops[0].reuse(seq))
            held[cached] = True
            lacking -= len(cached)
        return int(held.sum()) + lacking <= self._cache.pool.total
