"""What a sequence may do with the cache: take a cached prefix, grow, share, cut, publish, let go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .growable_int_array import GrowableIntArray, Ints, Space
from .host_kv_tier import HostKVTier
from .page_pool import PagePool
from .radix_tree import PrefixMatch, RadixNode, RadixTree
from .state_checkpoints import StateCheckpoint, StateCheckpoints
from .window_pages import WindowPages

WORTH_LOADING = 16  # tokens; fewer are computed as fast as they are brought back from main memory
MOST_AT_ONCE = 256  # tokens evicted beyond the need, so that a full pool does not evict in every step


class CacheHolder(Protocol):
    """A sequence as the cache sees it.

        tokens   t0 t1 t2 t3 t4 t5 t6      all tokens
        computed ──────────────┘            tokens whose keys and values are stored
        slots    s0 s1 s2 s3 s4 s5          where, a whole number of pages

    A page that another sequence or the tree holds too is never written: new tokens go to own pages.
    trail, into, branch: of models that keep states, see `StateHolder`.
    window: of models with windowed layers, the first of its pages whose rows there it holds; see `WindowPrefixCache`.
    """

    tokens: GrowableIntArray
    slots: GrowableIntArray
    computed: int
    node: RadixNode | None
    trail: list[StateCheckpoint]
    into: int
    branch: int
    window: int

    @property
    def namespace(self) -> Space: ...


class PrefixCache:
    """Of a model whose layers keep keys and values; `RecurrentPrefixCache` is that of one whose layers keep states,
    `WindowPrefixCache` that of one with layers that see a window only.

    host: where evicted prefixes go and come back from, None: they are forgotten.
    lost: tokens whose keys and values were cached and that were computed again for want of a state, or of rows of a
        window.
    """

    trails: StateCheckpoints | None = None
    windows: WindowPages | None = None
    lost = 0

    def __init__(self, pool: PagePool, host: HostKVTier | None = None, tree: RadixTree | None = None) -> None:
        self.pool, self.host, self.tree = pool, host, tree or RadixTree(pool)
        self.tree.on_evict = host.keep if host else None
        self._at_once = min(max(1, pool.total // 64), -(-MOST_AT_ONCE // pool.page_size))  # pages

    @property
    def available(self) -> int:
        """Pages that are free or can be made free by eviction."""
        return self.pool.free + self.tree.evictable

    def pages(self, seq: CacheHolder) -> Ints:
        size = self.pool.page_size
        return seq.slots.array[::size] // size

    def attach(self, seq: CacheHolder, limit: int) -> int:
        """Start an empty row on the longest cached prefix of its first `limit` tokens; returns its length."""
        tokens = seq.tokens.array[:limit]
        if self.host is not None:
            self._load_from_host(self.host, tokens, seq.namespace)
        match = self._match(tokens, seq.namespace)
        self.pool.retain(match.pages)
        seq.slots.extend(self._slots(match.pages))
        self._stand_on(seq, match)
        return match.length

    def rejoin(self, seq: CacheHolder, limit: int) -> int:
        """Let a row that holds pages go on along what others computed of its next tokens; returns the tokens gained.

        As for an empty row, the first `limit` tokens count, and few are not worth it.
        """
        tokens, before = seq.tokens.array[:limit], seq.computed
        if self.reusable(tokens, seq.namespace) - before < WORTH_LOADING:
            return 0
        if self.host is not None:
            self._load_from_host(self.host, tokens, seq.namespace)
        match = self._match(tokens, seq.namespace)
        if match.length <= before:
            return 0
        self.pool.retain(match.pages)
        own = self.pages(seq).copy()
        self._step_off(seq)
        seq.slots.truncate(0)
        seq.slots.extend(self._slots(match.pages))
        self._stand_on(seq, match)
        self.pool.release(own)
        return match.length - before

    def reusable(self, tokens: Ints, namespace: Space) -> int:
        """Length of the longest prefix that need not be computed."""
        length = self.tree.match_length(tokens, namespace)
        kept = self._worth_loading(self.host, tokens, namespace, length) if self.host else ()
        return length + len(kept) * self.pool.page_size

    def missing(self, seq: CacheHolder, length: int) -> int:
        """Pages to allocate before `seq` can hold `length` tokens."""
        size = self.pool.page_size
        return max(0, -(-length // size) - len(seq.slots) // size)

    def cached_pages(self, seq: CacheHolder, limit: int) -> Ints:
        """Where an empty row would start in `attach`, without what comes from main memory; changes nothing."""
        return self.tree.match_pages(seq.tokens.array[:limit], seq.namespace)

    def mark(self, seq: CacheHolder, held: NDArray[np.bool_]) -> None:
        """Mark the pages that cannot be taken while `seq` keeps its own; held: bool [pages of the pool + 1]."""
        held[self.pages(seq)] = True
        if seq.node is not None:
            self.tree.mark(seq.node, held)

    def grow(self, seq: CacheHolder, length: int, leaves: bool = True) -> bool:
        """Give `seq` what it takes to compute its tokens up to `length`, evicting if it must. False: there is not
        enough.

        leaves: whether the state after them will be wanted.
        """
        have = seq.slots.length
        if length <= have:
            return True
        if length == have + 1 and self.pool.page_size == 1 and self.pool.free:
            seq.slots.append(self.pool.allocate_page())
            return True
        missing = self.missing(seq, length)
        if missing > self.pool.free:
            self.tree.evict(max(missing - self.pool.free, self._at_once))
        if missing > self.pool.free:
            return False
        seq.slots.extend(self._slots(self.pool.allocate(missing)))
        return True

    def misses_state(self, seq: CacheHolder) -> bool:
        """Whether it was a place for its state that `grow` did not find."""
        return False

    def shed(self, seq: CacheHolder) -> bool:
        """Let go of a state that it can do without; False: it has none."""
        return False

    def advance(self, seq: CacheHolder, length: int) -> None:
        """A step was launched that computes its tokens up to `length`."""
        seq.computed = length

    def check_pinned(self, seqs: Sequence[CacheHolder]) -> None:
        """Raise OutOfPages if so many sequences may not be pinned, whatever their pages."""

    def spoil(self, seq: CacheHolder) -> None:
        """Such a step failed: go back to what it did not touch. Keys and values after `computed` are written again."""

    def stands(self, seq: CacheHolder) -> bool:
        """Whether it can go on from its last computed token."""
        return True

    def cut(self, seq: CacheHolder, length: int) -> None:
        """Forget what is computed beyond `length` tokens (or beyond the page border before it, if shared)."""
        size = self.pool.page_size
        seq.computed = self._go_back(seq, min(seq.computed, length))
        kept = -(-seq.computed // size)
        dropped = seq.slots.array[kept * size :: size] // size
        seq.slots.truncate(kept * size)
        if len(dropped):
            self.pool.release(dropped)
        if not kept:
            self._unlock(seq)

    def _go_back(self, seq: CacheHolder, length: int) -> int:
        """To the last of its first `length` computed tokens that it can go on from; returns how many these are."""
        return length if self._writable(seq, length) else length - length % self.pool.page_size

    def _writable(self, seq: CacheHolder, length: int) -> bool:
        """Whether its tokens from `length` on may be computed again: none of them is in a page of others."""
        size = self.pool.page_size
        return length % size == 0 or self.pool.refs[int(seq.slots.array[length]) // size] == 1

    def share(self, parent: CacheHolder, child: CacheHolder) -> int:
        """Let a new-born child stand on the parent's whole pages by reference; returns the tokens shared."""
        child.computed = self._shared(parent, child, parent.computed - parent.computed % self.pool.page_size)
        pages = self.pages(parent)[: child.computed // self.pool.page_size]
        self.pool.retain(pages)
        child.slots.extend(self._slots(pages))
        if parent.node is not None and child.computed:
            self._lock_within(child, parent.node)
        return child.computed

    def _shared(self, parent: CacheHolder, child: CacheHolder, length: int) -> int:
        """How many of the `length` tokens in the parent's whole pages a child can go on from."""
        return length

    def publish(self, seq: CacheHolder) -> None:
        """Put the computed tokens into the tree, for others to match."""
        self._lock(seq, self.tree.insert(seq.tokens.array[: seq.computed], self.pages(seq), seq.namespace))

    def share_equal_prefixes(self, seqs: Iterable[CacheHolder]) -> bool:
        """Have them stand on the tree's pages where these are others than their own by now; whether any pages were free
        for it.
        """
        return False

    def release(self, seq: CacheHolder, publish: bool = True) -> None:
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
        """Free every page that no sequence holds; what was used last is kept in main memory, if there is room for
        it."""
        kept = self.host.capacity if self.host else 0
        freed = self.tree.evict(self.tree.evictable - kept, tell=False)
        freed += self.tree.evict(self.pool.total + 1)
        if self.host is not None:
            self.host.copies.release()
        return freed

    def check(self, rows: Iterable[Ints], holders: Iterable[CacheHolder] = ()) -> None:
        """Raise unless tree, pool, the sequences' page rows and states, and what main memory keeps agree."""
        self.tree.check(rows)
        if self.host is not None:
            self.host.check()

    def close(self) -> None:
        if self.host is not None:
            self.tree.on_evict = None
            self.host.close()
            self.host = None

    def _load_from_host(self, host: HostKVTier, tokens: Ints, namespace: Space) -> None:
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

    def _worth_loading(self, host: HostKVTier, tokens: Ints, namespace: Space, length: int) -> Ints:
        places = host.find(namespace, tokens, length)
        return places if len(places) * self.pool.page_size >= WORTH_LOADING else places[:0]

    def _match(self, tokens: Ints, namespace: Space) -> PrefixMatch:
        """What of the tree a sequence can go on from."""
        return self.tree.match(tokens, namespace)

    def _step_off(self, seq: CacheHolder) -> None:
        """Before its row holds other pages."""

    def _stand_on(self, seq: CacheHolder, match: PrefixMatch) -> None:
        seq.computed = match.length
        self._lock(seq, match.node)

    def _lock(self, seq: CacheHolder, node: RadixNode) -> None:
        self.tree.lock(node)
        if seq.node is not None:
            self.tree.unlock(seq.node)
        seq.node = node

    def _lock_within(self, seq: CacheHolder, node: RadixNode) -> None:
        """Lock what `seq` shares of the path to `node`."""
        self._lock(seq, node)

    def _unlock(self, seq: CacheHolder) -> None:
        """It owns nothing of the tree: a sequence without pages must hold no lock, since none could take it back."""
        if seq.node is not None:
            self.tree.unlock(seq.node)
            seq.node = None

    def _slots(self, pages: Ints) -> Ints:
        size = self.pool.page_size
        if size == 1:
            return pages
        slots: Ints = np.asarray(pages[:, None] * size + np.arange(size), dtype=np.int32).ravel()
        return slots
