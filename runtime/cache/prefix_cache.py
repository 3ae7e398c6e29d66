"""What a sequence may do with the cache: take a cached prefix, grow, share, cut, publish, let go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .host import HostTier
from .pages import PagePool
from .radix import Node, RadixTree
from .row import IntRow, Ints

WORTH_LOADING = 16  # tokens; fewer are computed as fast as they are brought back from main memory
MOST_AT_ONCE = 256  # tokens evicted beyond the need, so that a full pool does not evict in every step


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

    @property
    def namespace(self) -> str: ...


class PrefixCache:
    """host: where evicted prefixes go and come back from, None: they are forgotten."""

    def __init__(self, pool: PagePool, host: HostTier | None = None) -> None:
        self.pool, self.host = pool, host
        self.tree = RadixTree(pool)
        self.tree.on_evict = host.keep if host else None
        self._at_once = min(max(1, pool.total // 64), -(-MOST_AT_ONCE // pool.page_size))  # pages

    @property
    def available(self) -> int:
        """Pages that are free or can be made free by eviction."""
        return self.pool.free + self.tree.evictable

    def pages(self, seq: Holder) -> Ints:
        size = self.pool.page_size
        return seq.slots.array[::size] // size

    def attach(self, seq: Holder, limit: int) -> int:
        """Start an empty row on the longest cached prefix of its first `limit` tokens; returns its length."""
        tokens = seq.tokens.array[:limit]
        if self.host is not None:
            self._bring_back(self.host, tokens, seq.namespace)
        match = self.tree.match(tokens, seq.namespace)
        self.pool.retain(match.pages)
        seq.slots.extend(self._slots(match.pages))
        seq.computed = match.length
        self._lock(seq, match.node)
        return match.length

    def rejoin(self, seq: Holder, limit: int) -> int:
        """Let a row that holds pages go on along what others computed of its next tokens; returns the tokens gained.

        As for an empty row, the first `limit` tokens count, and few are not worth it.
        """
        tokens, before = seq.tokens.array[:limit], seq.computed
        if self.reusable(tokens, seq.namespace) - before < WORTH_LOADING:
            return 0
        if self.host is not None:
            self._bring_back(self.host, tokens, seq.namespace)
        match = self.tree.match(tokens, seq.namespace)
        if match.length <= before:
            return 0
        self.pool.retain(match.pages)
        own = self.pages(seq).copy()
        seq.slots.truncate(0)
        seq.slots.extend(self._slots(match.pages))
        seq.computed = match.length
        self._lock(seq, match.node)
        self.pool.release(own)
        return match.length - before

    def reusable(self, tokens: Ints, namespace: str) -> int:
        """Length of the longest prefix that need not be computed."""
        length = self.tree.match_length(tokens, namespace)
        kept = self._worth_loading(self.host, tokens, namespace, length) if self.host else ()
        return length + len(kept) * self.pool.page_size

    def missing(self, seq: Holder, length: int) -> int:
        """Pages to allocate before `seq` can hold `length` tokens."""
        size = self.pool.page_size
        return max(0, -(-length // size) - len(seq.slots) // size)

    def cached_pages(self, seq: Holder, limit: int) -> Ints:
        """Where an empty row would start in `attach`, without what comes from main memory; changes nothing."""
        return self.tree.match_pages(seq.tokens.array[:limit], seq.namespace)

    def mark(self, seq: Holder, held: NDArray[np.bool_]) -> None:
        """Set the pages that nobody can take while `seq` keeps its own; held: bool [pages of the pool + 1]."""
        held[self.pages(seq)] = True
        if seq.node is not None:
            self.tree.mark(seq.node, held)

    def grow(self, seq: Holder, length: int) -> bool:
        """Give `seq` pages for `length` tokens, evicting if it must. False: not enough, no page given."""
        have = seq.slots.length
        if length <= have:
            return True
        if length == have + 1 and self.pool.page_size == 1 and self.pool.free:
            seq.slots.append(self.pool.allocate_one())
            return True
        missing = self.missing(seq, length)
        if missing > self.pool.free:
            self.tree.evict(max(missing - self.pool.free, self._at_once))
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
        self._lock(seq, self.tree.insert(seq.tokens.array[: seq.computed], self.pages(seq), seq.namespace))

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

    def flush(self) -> int:
        """Forget every prefix that no sequence holds, and all that is kept in main memory; returns the pages freed."""
        if self.host is not None:
            self.host.clear()
        return self.tree.clear()

    def move_out(self) -> int:
        """Free every page that no sequence holds; what was used last is kept in main memory, if there is room for it."""
        kept = self.host.capacity if self.host else 0
        freed = self.tree.evict(self.tree.evictable - kept, tell=False)
        freed += self.tree.evict(self.pool.total + 1)
        if self.host is not None:
            self.host.copies.release()
        return freed

    def check(self, rows: Iterable[Ints]) -> None:
        """Raise unless tree, pool, the sequences' page rows and what main memory keeps agree."""
        self.tree.check(rows)
        if self.host is not None:
            self.host.check()

    def close(self) -> None:
        if self.host is not None:
            self.tree.on_evict = None
            self.host.close()
            self.host = None

    def _bring_back(self, host: HostTier, tokens: Ints, namespace: str) -> None:
        """Have the tree hold what main memory knows of `tokens` beyond it, as far as there are pages."""
        match = self.tree.match(tokens, namespace)
        wanted = len(self._worth_loading(host, tokens, namespace, match.length))
        if not wanted:
            return
        self.tree.lock(match.node)
        if wanted > self.pool.free:
            self.tree.evict(wanted - self.pool.free)  # which may take the place of what is wanted
        places = host.find(namespace, tokens, match.length)[: self.pool.free]
        if len(places):
            known = tokens[: match.length + len(places) * self.pool.page_size]
            pages = self.pool.allocate(len(places))
            if host.load(namespace, known, places, pages):
                self.tree.insert(known, np.concatenate([match.pages, pages]), namespace)
            self.pool.release(pages)
        self.tree.unlock(match.node)

    def _worth_loading(self, host: HostTier, tokens: Ints, namespace: str, length: int) -> Ints:
        places = host.find(namespace, tokens, length)
        return places if len(places) * self.pool.page_size >= WORTH_LOADING else places[:0]

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
