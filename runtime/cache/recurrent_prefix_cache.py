"""The cache of a model whose layers keep states: a sequence goes on only from tokens after which there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .growable_int_array import Ints
from .page_pool import PagePool
from .partial_prefix_cache import PartialPrefixCache
from .prefix_cache import CacheHolder
from .radix_node_states import RadixNodeStates
from .radix_tree import PrefixMatch, RadixTree
from .recurrent_state_slots import RecurrentStateSlots
from .state_checkpoints import StateCheckpoint, StateCheckpoints


class RecurrentPrefixCache(PartialPrefixCache):
    """Pages as in `PrefixCache`, and the states that `StateCheckpoints` gives, keeps and takes back."""

    def __init__(self, pool: PagePool, states: RecurrentStateSlots) -> None:
        self._trails = self.trails = StateCheckpoints(RadixNodeStates(states))
        super().__init__(pool, tree=RadixTree(pool, self._trails.nodes))

    def grow(self, seq: CacheHolder, length: int, leaves: bool = True) -> bool:
        return super().grow(seq, length) and (length <= seq.computed or self._trails.reserve(seq, leaves))

    def check_pinned(self, seqs: Sequence[CacheHolder]) -> None:
        self._trails.check_pinned(len(seqs))

    def misses_state(self, seq: CacheHolder) -> bool:
        return not seq.into

    def shed(self, seq: CacheHolder) -> bool:
        return self._trails.shed(seq)

    def advance(self, seq: CacheHolder, length: int) -> None:
        if length > seq.computed:
            self._trails.advance(seq, length)
        super().advance(seq, length)

    def spoil(self, seq: CacheHolder) -> None:
        self._trails.spoil(seq)
        self.cut(seq, seq.computed)

    def stands(self, seq: CacheHolder) -> bool:
        return (seq.trail[-1].length if seq.trail else 0) == seq.computed

    def publish(self, seq: CacheHolder) -> None:
        """Up to the last page border after which it has a state."""
        marks = [mark for mark in seq.trail if mark.length <= len(seq.tokens) and self._is_whole(mark.length)]
        if not marks:
            return
        node = self.tree.insert(seq.tokens.array[: marks[-1].length], self.pages(seq), seq.namespace)
        self._lock(seq, node)
        self._trails.nodes.keep(node, marks[-1].slot)
        self._adopt(seq, self.tree.pages_of(node))

    def release(self, seq: CacheHolder, publish: bool = True) -> None:
        super().release(seq, publish)
        self._trails.release(seq)

    def check(self, rows: Iterable[Ints], holders: Iterable[CacheHolder] = ()) -> None:
        super().check(rows)
        self._trails.check(holders)

    def _stand_on(self, seq: CacheHolder, match: PrefixMatch) -> None:
        super()._stand_on(seq, match)
        self.lost += match.known - match.length
        seq.branch = match.known
        if match.length:
            self._trails.begin(seq, StateCheckpoint(match.length, match.node.state))

    def _go_back(self, seq: CacheHolder, length: int) -> int:
        """To the last state that is there, and whose tokens are not in the middle of a page of others."""
        mark = self._trails.last(seq, length, lambda length: self._writable(seq, length))
        self._trails.go_back(seq, mark)
        seq.computed = mark.length
        if seq.node is not None:
            self._lock_within(seq, seq.node)
        return mark.length

    def _shared(self, parent: CacheHolder, child: CacheHolder, length: int) -> int:
        mark = self._trails.last(parent, length, self._is_whole)
        self._trails.share(parent, child, mark)
        return mark.length

    def _is_whole(self, length: int) -> bool:
        """Whether so many tokens fill whole pages."""
        return length % self.pool.page_size == 0
