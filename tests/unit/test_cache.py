"""The radix tree and the page pool against a dictionary of prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sgl.runtime.cache import GrowableIntArray, PagePool, PrefixCache, RadixTree, common_prefix


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def store(tree: RadixTree, tokens: np.ndarray) -> np.ndarray:
    """Insert as a finished sequence would: allocate, insert, let go."""
    pages = tree.pool.allocate(len(tokens) // tree.pool.page_size)
    tree.insert(tokens, pages)
    tree.pool.release(pages)
    return pages


def test_row_grows_and_cuts():
    row = GrowableIntArray([1, 2])
    row.extend(range(200))
    row.append(7)
    row.truncate(3)
    row.append(9)
    assert row.array.tolist() == [1, 2, 0, 9]


def test_pool_never_hands_out_the_padding_page_and_loses_none():
    pool = PagePool(9)
    pages = pool.allocate(8)
    assert sorted(pages) == list(range(1, 9))
    with pytest.raises(RuntimeError, match="asked for 1 pages where 0 are free"):
        pool.allocate(1)
    pool.retain(pages[:3])
    assert pool.release(pages) == 5
    assert pool.release(pages[:3]) == 3
    pool.check()


@pytest.mark.parametrize("size", [1, 4])
def test_match_returns_the_pages_of_the_longest_prefix(size):
    tree = RadixTree(PagePool(64, size))
    first = store(tree, np.arange(12, dtype=np.int32))
    second = store(tree, np.concatenate([np.arange(8), np.arange(100, 108)]).astype(np.int32))
    match = tree.match(np.concatenate([np.arange(8), np.arange(100, 106)]).astype(np.int32))
    assert match.length == 14 - 14 % size
    whole = 8 // size
    assert match.pages.tolist() == first[:whole].tolist() + second[whole : match.length // size].tolist()
    tree.check()


def test_a_split_keeps_the_locked_node_and_any_unlock_order_conserves_pages():
    tree = RadixTree(PagePool(64))
    store(tree, np.arange(10, dtype=np.int32))
    long = tree.match(np.arange(10, dtype=np.int32))
    tree.lock(long.node)
    short = tree.match(ids(0, 1, 2, 99))  # splits the node that `long` holds
    tree.lock(short.node)
    assert long.node.parent is short.node and long.node.tokens.tolist() == list(range(3, 10))
    assert tree.clear() == 0
    tree.check()
    tree.unlock(short.node)
    assert tree.clear() == 0
    tree.unlock(long.node)
    assert tree.clear() == 10 and tree.pool.free == tree.pool.total
    tree.check()


def test_eviction_takes_the_least_recently_used_leaf_first():
    tree = RadixTree(PagePool(64))
    for start in (10, 20, 30):
        store(tree, np.arange(start, start + 5, dtype=np.int32))
    tree.match(np.arange(10, 15, dtype=np.int32))
    assert tree.evict(7) == 7
    assert tree.match_length(np.arange(10, 15, dtype=np.int32)) == 5
    assert tree.match_length(np.arange(20, 25, dtype=np.int32)) == 0
    assert tree.match_length(np.arange(30, 35, dtype=np.int32)) == 3, "of the last leaf only the end went"
    tree.check()


def test_namespaces_share_the_pool_and_nothing_else():
    tree = RadixTree(PagePool(64))
    mine = tree.pool.allocate(10)
    tree.insert(np.arange(10, dtype=np.int32), mine, "a")
    tree.pool.release(mine)
    other = store(tree, np.arange(10, dtype=np.int32))
    assert tree.match(np.arange(10, dtype=np.int32), "a").pages.tolist() == mine.tolist()
    assert tree.match(np.arange(10, dtype=np.int32)).pages.tolist() == other.tolist()
    assert tree.match_length(np.arange(10, dtype=np.int32), "b") == 0 and set(tree.roots) == {"a", ""}
    assert tree.match(np.arange(10, dtype=np.int32), "b").length == 0 and set(tree.roots) == {"a", ""}
    assert tree.evict(10) == 10, "the least recently used goes first, whatever its namespace"
    assert set(tree.roots) == {""} and tree.match_length(np.arange(10, dtype=np.int32)) == 10
    tree.check()


@pytest.mark.parametrize("page_size", [1, 4])
def test_looking_at_a_prefix_finds_its_pages_and_leaves_the_order_of_eviction(page_size):
    tree = RadixTree(PagePool(64, page_size))
    pages = store(tree, np.arange(16, dtype=np.int32))
    store(tree, np.arange(100, 116, dtype=np.int32))
    row = np.array([*range(11), 90, 91], np.int32)
    found = tree.match_pages(row)
    assert found.tolist() == pages[: 11 // page_size].tolist() and len(found) * page_size == tree.match_length(row)
    assert len(list(tree.nodes())) == 2 and tree.evict(16 // page_size) == 16 // page_size
    assert not len(tree.match_pages(row)), "it was stored first and only looked at: it goes first"
    assert tree.match(row).pages.tolist() == []
    tree.check()


def test_common_prefix():
    assert common_prefix(ids(1, 2, 3), ids(1, 2, 4)) == 2
    assert common_prefix(ids(1, 2), ids(1, 2, 4)) == 2
    assert common_prefix(ids(), ids(1)) == 0


class Sequence:
    def __init__(self, namespace: str = "") -> None:
        self.tokens, self.slots, self.computed, self.node = GrowableIntArray(), GrowableIntArray(), 0, None
        self.namespace = namespace


class CacheMachine(RuleBasedStateMachine):
    """Random sequences take, grow, share, cut and release; a slot's content is followed by value."""

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(PagePool(40, 3))
        self.content: dict[int, tuple[Any, ...]] = {}  # slot -> namespace and whole prefix whose KV it holds
        self.alive: list[Sequence] = []

    @rule(target=sequences, tokens=st.lists(st.integers(0, 2), max_size=20), namespace=st.sampled_from("ab"))
    def open(self, tokens, namespace):
        seq = Sequence(namespace)
        seq.tokens.extend(tokens)
        self.cache.attach(seq, len(tokens))
        self.alive.append(seq)
        return seq

    @rule(seq=sequences, tokens=st.lists(st.integers(0, 2), max_size=6))
    def append(self, seq, tokens):
        seq.tokens.extend(tokens)

    @rule(seq=sequences, part=st.floats(0.1, 1))
    def compute(self, seq, part):
        hi = seq.computed + int(part * (len(seq.tokens) - seq.computed))
        if self.cache.grow(seq, hi):
            prefix = tuple(seq.tokens.array.tolist())
            for place in range(seq.computed, hi):
                self.content[int(seq.slots.array[place])] = (seq.namespace, *prefix[: place + 1])
            seq.computed = hi

    @rule(seq=sequences)
    def publish(self, seq):
        self.cache.publish(seq)

    @rule(seq=sequences, part=st.floats(0, 1))
    def cut(self, seq, part):
        length = int(part * len(seq.tokens))
        self.cache.cut(seq, length)
        seq.tokens.truncate(length)

    @rule(target=sequences, parent=sequences)
    def fork(self, parent):
        child = Sequence(parent.namespace)
        child.tokens.extend(parent.tokens.array)
        self.cache.share(parent, child)
        self.alive.append(child)
        return child

    @rule(seq=consumes(sequences), publish=st.booleans())
    def close(self, seq, publish):
        self.cache.release(seq, publish)
        self.alive.remove(seq)

    @rule(pages=st.integers(1, 10))
    def evict(self, pages):
        self.cache.tree.evict(pages)

    @invariant()
    def every_computed_token_is_where_its_row_says(self):
        for seq in self.alive:
            prefix = tuple(seq.tokens.array.tolist())
            for place in range(seq.computed):
                assert self.content[int(seq.slots.array[place])] == (seq.namespace, *prefix[: place + 1])

    @invariant()
    def nothing_is_lost(self):
        self.cache.tree.check(self.cache.pages(seq) for seq in self.alive)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
