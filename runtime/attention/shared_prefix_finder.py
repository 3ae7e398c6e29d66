"""Finds the long prefix of pages that many decoding sequences of a step share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SEQUENCES = 8
LEAST_TOKENS = 512
LEAST_SAVED = 24576  # tokens read less in a layer; fewer do not pay for two more kernels


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """`pages` whole pages that begin the context of all `members` (bool [sequences]) of a step.

    leader: the first of them.
    """

    leader: int
    pages: int
    members: np.ndarray


class PrefixFinder:
    """Remembers the last result: from one step to the next, most sequences stay.

    A slot's contents follow from all tokens up to its own, so one common slot means a common prefix.
    """

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._known: tuple[int, int, int, int] | None = None  # pages, last slot, how many have it, of how many

    def find(self, context_slots: Sequence[np.ndarray]) -> SharedPrefix | None:
        """The prefix worth attending once, shared by at least half of the sequences, or None.

        context_slots: see `Batch`; each sequence has one new token.
        """
        if len(context_slots) < LEAST_SEQUENCES:
            return None
        if self._known is not None:
            pages, slot, *counts = self._known
            members = self._slots_before(context_slots, pages) == slot
            if [int(members.sum()), len(members)] == counts:
                return SharedPrefix(int(members.argmax()), pages, members)
        return self._search(context_slots)

    def _search(self, context_slots: Sequence[np.ndarray]) -> SharedPrefix | None:
        self._known = None
        least = -(-LEAST_TOKENS // self._page)
        slots = self._slots_before(context_slots, least)
        values, counts = np.unique(slots[slots >= 0], return_counts=True)
        if not len(counts):
            return None
        members = slots == values[counts.argmax()]
        group = [context_slots[index] for index in np.flatnonzero(members).tolist()]
        pages = self._longest(group, least)
        count, real = len(group), sum(len(row) > 1 for row in context_slots)
        if count < max(LEAST_SEQUENCES, real / 2) or (count - 1) * pages * self._page < LEAST_SAVED:
            return None
        self._known = pages, int(group[0][pages * self._page - 1]), count, len(members)
        return SharedPrefix(int(members.argmax()), pages, members)

    def _longest(self, group: list[np.ndarray], least: int) -> int:
        """Pages that the whole group shares, at least `least`: cut where the first member diverges."""
        pages = min((len(row) - 1) // self._page for row in group)
        while pages > least:
            slots = self._slots_before(group, pages)
            different = np.flatnonzero(slots != slots[0]).tolist()
            if not different:
                break
            first, other = group[0][: pages * self._page], group[different[0]][: pages * self._page]
            pages = max(int((first != other).argmax()) // self._page, least)
        return pages

    def _slots_before(self, rows: Sequence[np.ndarray], pages: int) -> np.ndarray:
        """The last slot of the first `pages` pages of each, -1 where they do not end before the new token."""
        last = pages * self._page - 1
        return np.fromiter((row[last] if len(row) > last + 1 else -1 for row in rows), np.int64, len(rows))
