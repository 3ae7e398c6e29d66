"""The pages of sliding-window layers: where they are stored, and which may be taken.

    page            1   2   3   4   5   6       of all layers: numbers of the tree and of the sequences
    where           0   0   7   2   5   9       its rows of windowed layers: a page of their pool, 0: taken
    held                        x   x   x       by sequences that run, are idle or are pinned: never taken

What is not held stays until its place is wanted. Pages that left a window go first, oldest first; then the ends of
texts, which may be continued, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np

from .growable_int_array import Ints

SLACK = 32  # tokens before the window that stay held, for small rollbacks
LOT = 32  # tokens that are given back at once

NONE: Ints = np.zeros(0, np.int32)


def span(reach: int, page_size: int) -> int:
    """Tokens that a sequence holds between two steps at most."""
    return reach + max(SLACK, page_size) + max(LOT, page_size) + page_size


class WindowPageTable:
    """Where the rows of windowed layers are stored: `where` of all pages."""

    def __init__(self, pages: int, page_size: int, reach: int) -> None:
        self.page_size, self.reach = page_size, reach
        self.where = np.zeros(pages, np.int32)

    def first(self, length: int) -> int:
        """The first page that the token after the first `length` sees."""
        return max(0, length - self.reach + 1) // self.page_size

    def slots(self, slots: Ints, done: int) -> Ints:
        """Slots of all tokens of a sequence -> the same for windowed layers, 0 for those that tokens from `done` on do
        not see.

        Raises RuntimeError where rows that they see are gone.
        """
        start, size = self.first(done) * self.page_size, self.page_size
        seen = slots[start:]
        places = self.where[seen if size == 1 else seen // size]
        if not places.all():
            raise RuntimeError(
                f"rows within the window of a sequence were given to others, after {done} of {len(slots)} tokens"
            )
        found = np.zeros(len(slots), np.int32)
        found[start:] = places if size == 1 else places * size + seen % size
        return found

    def slots_of(self, slots: Ints) -> Ints:
        """Slots of new tokens -> the same for windowed layers; slot 0 stays 0.
        Raises RuntimeError where a token has no place.
        """
        found: Ints = self.where[slots // self.page_size] * self.page_size + slots % self.page_size
        if ((found == 0) != (slots == 0)).any():
            raise RuntimeError("a new token has no place in the layers with a window")
        return found

    def put(self, pages: Ints, places: Ints) -> None:
        """As another process says."""
        self.where[pages] = places


class WindowPages(WindowPageTable):
    """pages: of the pool of all layers, with its padding page.  total: pages for windowed layers, without that.

    reach: tokens that a query of a windowed layer sees at most, its own included.
    slack, lot: SLACK in tokens and LOT in pages, no less than a page.
    on_free: sees each array of places as it is freed (the tests fill them with NaN).
    given_back: tokens so far that left the window of the sequence that computed them.
    changed: pages moved since the last call of `moved`; None: it is not used.
    """

    def __init__(
        self, pages: int, total: int, page_size: int, reach: int, on_free: Callable[[Ints], None] | None = None
    ) -> None:
        super().__init__(pages, page_size, reach)
        self.total = total
        self.slack, self.lot = max(SLACK, page_size), max(1, LOT // page_size)
        self.given_back = 0
        self.changed: list[Ints] | None = None
        self._holds = np.zeros(pages, np.int32)
        self._ends = np.zeros(pages, bool)
        self._free = list(range(total, 0, -1))
        self._left_window: OrderedDict[int, None] = OrderedDict()  # pages with rows that are not held
        self._kept: OrderedDict[int, None] = OrderedDict()  # the same, at the ends of texts
        self._on_free = on_free

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def loose(self) -> int:
        """Pages with rows that are not held."""
        return len(self._left_window) + len(self._kept)

    @property
    def held(self) -> int:
        return self.total - self.free - self.loose

    def has_room(self, lengths: Iterable[int], step: int, pinned: int) -> bool:
        """Whether sequences that grow to these lengths, in steps of so many tokens, find rows in addition to so many
        pinned pages.
        """
        most = span(self.reach, self.page_size)
        wanted = step + sum(min(most, length) + self.page_size for length in lengths)
        return wanted <= (self.total - pinned) * self.page_size

    def usable(self, pages: Ints) -> int:
        """The most tokens of whole pages, in order from the first, that somebody can go on from; changes nothing."""
        there = self.where[pages] != 0
        if there[self.first(len(pages) * self.page_size) :].all():
            return len(pages) * self.page_size
        gaps = np.concatenate([[0], np.cumsum(~there)])
        ends = np.arange(len(pages) + 1)
        firsts = np.maximum(0, ends * self.page_size - self.reach + 1) // self.page_size
        return int(np.flatnonzero(gaps[ends] == gaps[firsts])[-1]) * self.page_size

    def moved(self) -> tuple[Ints, Ints]:
        """Pages moved since the last call, and their places, for `put` on other ranks. The first call starts the
        record.
        """
        changed, self.changed = self.changed, []
        pages: Ints = (
            np.flatnonzero(self.where).astype(np.int32)
            if changed is None
            else np.unique(np.concatenate([NONE, *changed]))
        )
        return pages, self.where[pages]

    def make_room(self, count: int) -> bool:
        """Have `count` places free, taken from what is not held. False: there is not enough, and nothing was taken."""
        if count > self.free + self.loose:
            return False
        taken: list[int] = []
        while count > self.free + len(taken):
            taken.append((self._left_window or self._kept).popitem(last=False)[0])
        if taken:
            self._clear(np.array(taken, np.int32))
        return True

    def give(self, pages: Ints) -> None:
        """Places for pages that have none, held once each; so many must be free."""
        count = len(pages)
        self.where[pages] = self._free[: -count - 1 : -1]
        del self._free[len(self._free) - count :]
        self._holds[pages] = 1
        self._note(pages)

    def hold(self, pages: Ints) -> None:
        """Hold pages with rows: their places are not taken."""
        self._holds[pages] += 1
        for page in pages[self._holds[pages] == 1].tolist():
            self._queue(page).pop(page)

    def let_go(self, pages: Ints) -> None:
        """Give up one hold on each."""
        self._holds[pages] -= 1
        for page in pages[self._holds[pages] == 0].tolist():
            self._queue(page)[page] = None

    def keep(self, pages: Ints) -> None:
        """The end of a text: of these pages, those that have rows go last, and least recently used first."""
        pages = pages[self.where[pages] != 0]
        for page in pages[self._holds[pages] == 0].tolist():
            self._queue(page).pop(page)
            self._kept[page] = None
        self._ends[pages] = True

    def drop(self, pages: Ints) -> None:
        """These pages were freed for all layers."""
        rows = pages[self.where[pages] != 0]
        for page in rows.tolist():
            self._queue(page).pop(page)
        if len(rows):
            self._clear(rows)

    def check(self, holders: Iterable[Ints], refs: Ints) -> None:
        """Raise unless every hold is counted and every place is somebody's or free.

        holders: the pages that each sequence holds.  refs: of the pages of all layers.
        """
        found = np.zeros_like(self._holds)
        for pages in holders:
            np.add.at(found, pages, 1)
        placed = np.flatnonzero(self.where)
        if (wrong := np.flatnonzero(found != self._holds)[:8]).size:
            raise RuntimeError(
                f"windows of pages {wrong.tolist()} are held {found[wrong]} times but counted {self._holds[wrong]}"
            )
        if (found[self.where == 0] > 0).any() or (refs[placed] <= 0).any() or self._ends[self.where == 0].any():
            raise RuntimeError("a page without rows is held, or a free page has some")
        if sorted([*self.where[placed].tolist(), *self._free]) != list(range(1, self.total + 1)):
            raise RuntimeError("a place of a window is lost, or two pages have it")
        ends = {page for page in placed.tolist() if not found[page] and self._ends[page]}
        if set(self._kept) != ends or set(self._left_window) != set(placed[found[placed] == 0].tolist()) - ends:
            raise RuntimeError("a page that is not held is missing in its queue")

    def _queue(self, page: int) -> OrderedDict[int, None]:
        return self._kept if self._ends[page] else self._left_window

    def _note(self, pages: Ints) -> None:
        if self.changed is not None:
            self.changed.append(pages)

    def _clear(self, pages: Ints) -> None:
        places = self.where[pages]
        self._free += places.tolist()
        self.where[pages] = 0
        self._ends[pages] = False
        self._note(pages)
        if self._on_free is not None:
            self._on_free(places)
