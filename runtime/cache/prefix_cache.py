"""What a sequence may do with the cache: take a cached prefix, grow, share, cut, publish, let go."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .pages import PagePool
from .radix import Node, RadixTree
from .row import IntRow, Ints


class Holder(Protocol):
    """A sequence as the cache sees it.

        tokens   t0 t1 t2 t3 t4 t5 t6      all tokens
        computed ──────────────┘            tokens whose keys and values are stored
        slots    s0 s1 s2 s3 s4 s5          where, a whole number of pages

    A page that another sequence or the tree holds too is never written: new tokens go to own pages.
    """

    tokens: IntRow
    slots: IntRow
    computed: int
    node: Node | None


class PrefixCache:
    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.tree = RadixTree(pool)

    @property
    def available(self) -> int:
        """Pages that are free or can be made free by eviction."""
        return self.pool.free + self.tree.evictable

    def pages(self, seq: Holder) -> Ints:
        size = self.pool.page_size
        return seq.slots.array[::size] // size

    def attach(self, seq: Holder, limit: int) -> int:
        """Start an empty row on the longest cached prefix of its first `limit` tokens; returns its length."""
        match = self.tree.match(seq.tokens.array[:limit])
        self.pool.retain(match.pages)
        seq.slots.extend(self._slots(match.pages))
        seq.computed = match.length
        self._lock(seq, match.node)
        return match.length

    def missing(self, seq: Holder, length: int) -> int:
        """Pages to allocate before `seq` can hold `length` tokens."""
        size = self.pool.page_size
        return max(0, -(-length // size) - len(seq.slots) // size)

    def grow(self, seq: Holder, length: int) -> bool:
        """Give `seq` pages for `length` tokens, evicting if it must. False: not enough, nothing changed."""
        have = seq.slots.length
        if length <= have:
            return True
        if length == have + 1 and self.pool.page_size == 1 and self.pool.free:
            seq.slots.append(self.pool.allocate_one())
            return True
        missing = self.missing(seq, length)
        if missing > self.pool.free:
            self.tree.evict(missing - self.pool.free)
        if missing > self.pool.free:
            return False
        seq.slots.extend(self._slots(self.pool.allocate(missing)))
        return True

    def cut(self, seq: Holder, length: int) -> None:
        """Forget what is computed beyond `length` tokens (or beyond the page border before it, if shared)."""
        size = self.pool.page_size
        computed = min(seq.computed, length)
        border = computed - computed % size
        if computed != border and self.pool.refs[int(seq.slots.array[border]) // size] > 1:
            computed = border
        seq.computed = computed
        kept = -(-computed // size)
        dropped = self.pages(seq)[kept:].copy()
        seq.slots.truncate(kept * size)
        if len(dropped):
            self.pool.release(dropped)
        if not kept:
            self._unlock(seq)

    def share(self, parent: Holder, child: Holder) -> int:
        """Let a new-born child stand on the parent's whole pages by reference; returns the tokens shared."""
        size = self.pool.page_size
        child.computed = parent.computed - parent.computed % size
        pages = self.pages(parent)[: child.computed // size]
        self.pool.retain(pages)
        child.slots.extend(self._slots(pages))
        if parent.node is not None and child.computed:
            self._lock(child, parent.node)
        return child.computed

    def publish(self, seq: Holder) -> None:
        """Put the computed tokens into the tree, for others to match."""
        self._lock(seq, self.tree.insert(seq.tokens.array[: seq.computed], self.pages(seq)))

    def release(self, seq: Holder, publish: bool = True) -> None:
        """Let go of every page; what was published (or is now) stays for as long as the tree has room."""
        if publish and seq.computed:
            self.publish(seq)
        pages = self.pages(seq).copy()
        seq.slots.truncate(0)
        seq.computed = 0
        if len(pages):
            self.pool.release(pages)
        self._unlock(seq)

    def _lock(self, seq: Holder, node: Node) -> None:
        self.tree.lock(node)
        if seq.node is not None:
            self.tree.unlock(seq.node)
        seq.node = node

    def _unlock(self, seq: Holder) -> None:
        """Nothing of the tree is its own: who holds no page must hold no lock, since nobody could take it back."""
        if seq.node is not None:
            self.tree.unlock(seq.node)
            seq.node = None

    def _slots(self, pages: Ints) -> Ints:
        size = self.pool.page_size
        if size == 1:
            return pages
        slots: Ints = np.asarray(pages[:, None] * size + np.arange(size), dtype=np.int32).ravel()
        return slots
