"""The cache of a model of whose layers some see a window only: there a sequence holds the rows of its last tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import OutOfPages, note_sequence
from .growable_int_array import Ints, Space
from .page_pool import PagePool
from .partial_prefix_cache import PartialPrefixCache
from .prefix_cache import CacheHolder
from .radix_tree import PrefixMatch, RadixNode
from .window_pages import WindowPages, span


class WindowPrefixCache(PartialPrefixCache):
    """Pages as in `PrefixCache`, and rows of windowed layers in `WindowPages`.

    A sequence holds those of its pages from the `window`-th on, which its next token sees. A prefix can be used up to a
    token before which a whole window of rows is there.
    """

    def __init__(self, pool: PagePool, windows: WindowPages) -> None:
        super().__init__(pool)
        self._windows = self.windows = windows
        self._twice = False  # the tree has other pages than those who stand on it may have

    def reusable(self, tokens: Ints, namespace: Space) -> int:
        return self._windows.usable(self.tree.match_pages(tokens, namespace))

    def cached_pages(self, seq: CacheHolder, limit: int) -> Ints:
        pages = super().cached_pages(seq, limit)
        return pages[: self._windows.usable(pages) // self.pool.page_size]

    def grow(self, seq: CacheHolder, length: int, leaves: bool = True) -> bool:
        have, size, missing = seq.slots.length, self.pool.page_size, self.missing(seq, length)
        if length <= have:
            return True
        if missing > self._windows.free + self._windows.loose or not super().grow(seq, length):
            return False
        self._windows.make_room(missing)
        self._windows.give(seq.slots.array[have::size] // size)
        return True

    def advance(self, seq: CacheHolder, length: int) -> None:
        super().advance(seq, length)
        if seq.branch and length >= seq.branch:
            self._keep_end(seq, seq.branch)
            seq.branch = 0
        first = self._windows.first(max(0, length - self._windows.slack))
        if first - seq.window >= self._windows.lot:
            self._windows.let_go(self._between(seq, seq.window, first))
            self._windows.given_back += (first - seq.window) * self.pool.page_size
            seq.window = first

    def publish(self, seq: CacheHolder) -> None:
        node = self.tree.insert(seq.tokens.array[: seq.computed], self.pages(seq), seq.namespace)
        self._lock(seq, node)
        self._renew(seq, node)
        self._adopt(seq, self.tree.pages_of(node))
        self._keep_end(seq, seq.computed)

    def share_equal_prefixes(self, seqs: Iterable[CacheHolder]) -> bool:
        if not self._twice:
            return False
        self._twice, found = False, 0
        try:
            for seq in seqs:
                found += self._take_over(seq)
        except BaseException as error:
            note_sequence(error, seq)
            raise
        return found > 0

    def _take_over(self, seq: CacheHolder) -> bool:
        """Who computed it again gave the tree pages of his own, and others kept theirs, which the tree let go."""
        if seq.node is None:
            return False
        pages = self.tree.pages_of(seq.node)
        if np.array_equal(pages, self.pages(seq)[: len(pages)]) or not self._windows.where[pages[seq.window :]].all():
            return False
        self._adopt(seq, pages)
        return True

    def release(self, seq: CacheHolder, publish: bool = True) -> None:
        if publish and seq.computed:
            self.publish(seq)
        self._step_off(seq)
        super().release(seq, publish=False)
        seq.branch = 0

    def check_pinned(self, seqs: Sequence[CacheHolder]) -> None:
        """Raise OutOfPages if these could hold more than half of the rows of windowed layers."""
        size = self.pool.page_size
        most = span(self._windows.reach, size) // size
        if 2 * (pages := sum(min(most, len(seq.slots) // size) for seq in seqs)) > self._windows.total:
            raise OutOfPages(
                f"with this prefix {pages} of the {self._windows.total} pages of layers with a window would be pinned, "
                "more than half; release other pins, or open the engine with more window_tokens"
            )

    def check(self, rows: Iterable[Ints], holders: Iterable[CacheHolder] = ()) -> None:
        super().check(rows)
        holders = list(holders)
        self._windows.check([self._held(seq) for seq in holders], self.pool.refs)
        for seq in holders:
            if seq.window > self._windows.first(seq.computed):
                raise RuntimeError(
                    f"of {seq.computed} computed tokens the window begins before page {seq.window}, the first that "
                    "is held"
                )

    def _match(self, tokens: Ints, namespace: Space) -> PrefixMatch:
        match = super()._match(tokens, namespace)
        length = self._windows.usable(match.pages)
        if length == match.length:
            return match
        node = self.tree.up_to(match.node, length) or self.tree.root_of(match.node)
        return PrefixMatch(match.pages[: length // self.pool.page_size], node, length, match.known)

    def _stand_on(self, seq: CacheHolder, match: PrefixMatch) -> None:
        super()._stand_on(seq, match)
        self.lost += match.known - match.length
        seq.branch = match.known if match.known > match.length else 0
        self._hold_from(seq, self._windows.first(match.length))

    def _step_off(self, seq: CacheHolder) -> None:
        self._windows.let_go(self._held(seq))
        seq.window = 0

    def _go_back(self, seq: CacheHolder, length: int) -> int:
        """To the last of its first `length` computed tokens whose window is
        there: what is no longer held may be gone.
        """
        length = super()._go_back(seq, length)
        found, old = self._usable(seq, length), self._held(seq).copy()
        first = min(seq.window, self._windows.first(found))
        self._windows.hold(self._between(seq, first, -(-found // self.pool.page_size)))
        self._windows.let_go(old)
        seq.window = first
        if found < length and seq.node is not None:
            seq.computed = found
            self._lock_within(seq, seq.node)
        return found

    def _usable(self, seq: CacheHolder, length: int) -> int:
        pages, size = self.pages(seq), self.pool.page_size
        if self._windows.where[pages[self._windows.first(length) : -(-length // size)]].all():
            return length
        return self._windows.usable(pages[: length // size])

    def _shared(self, parent: CacheHolder, child: CacheHolder, length: int) -> int:
        return self._windows.usable(self.pages(parent)[: length // self.pool.page_size])

    def share(self, parent: CacheHolder, child: CacheHolder) -> int:
        shared = super().share(parent, child)
        self._hold_from(child, self._windows.first(shared))
        return shared

    def _hold_from(self, seq: CacheHolder, first: int) -> None:
        """Of a row that holds nothing yet; where others part from it, somebody may go on."""
        seq.window = first
        self._windows.hold(self._held(seq))
        self._windows.keep(self._held(seq))

    def _renew(self, seq: CacheHolder, node: RadixNode) -> None:
        """Have the tree keep those of its pages that have rows where its own have none: what was computed again."""
        known = self.tree.pages_of(node)
        own, where = self.pages(seq)[: len(known)], self._windows.where
        better = (where[known] == 0) & (where[own] != 0)
        if better.any():
            self._twice = True
            self.tree.exchange(node, own, better)

    def _adopt(self, seq: CacheHolder, pages: Ints) -> None:
        old = self._between(seq, seq.window, len(pages)).copy()
        self._windows.hold(pages[seq.window :])
        self._windows.let_go(old)
        super()._adopt(seq, pages)

    def _keep_end(self, seq: CacheHolder, length: int) -> None:
        """What somebody sees who goes on from the whole pages of so many tokens, or from a little less, as the same
        prompt does.
        """
        first = self._windows.first(max(0, length - self._windows.slack))
        self._windows.keep(self._between(seq, first, length // self.pool.page_size))

    def _held(self, seq: CacheHolder) -> Ints:
        return self.pages(seq)[seq.window :]

    def _between(self, seq: CacheHolder, first: int, stop: int) -> Ints:
        size = self.pool.page_size
        found: Ints = seq.slots.array[first * size : stop * size : size] // size
        return found
