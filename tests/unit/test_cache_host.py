"""Prefixes kept in main memory, against what every page really holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sgl.runtime.cache import GrowableIntArray, HostKVTier, PagePool, PrefixCache

Prefix = tuple[str, tuple[int, ...]]  # namespace and tokens: what the keys and values of a page stand for


class Memory:
    """Pages by what they hold; what is given away holds nothing, so that nobody can read it."""

    def __init__(self, pages: int, places: int, size: int = 1) -> None:
        self.size = size
        self.rows: list[Row] = []
        self.pages: dict[int, Prefix] = {}
        self.places: dict[int, Prefix] = {}
        self.saved = 0
        host = HostKVTier(PagePool(places + 1, size, lambda freed: self._forget(self.places, freed)), self)
        self.cache = PrefixCache(PagePool(pages + 1, size, lambda freed: self._forget(self.pages, freed)), host)
        self.host = host

    def save(self, pages, places):
        assert len(pages) == len(places) == len(set(places.tolist()))
        self.saved += len(pages)
        for page, place in zip(pages.tolist(), places.tolist(), strict=True):
            self.places[place] = self.pages[page]

    def load(self, places, pages):
        assert len(pages) == len(places) == len(set(pages.tolist()))
        for place, page in zip(places.tolist(), pages.tolist(), strict=True):
            self.pages[page] = self.places[place]

    def release(self): ...

    def close(self): ...

    def open(self, tokens, namespace: str = "", limit: int | None = None) -> Row:
        row = Row(namespace)
        row.tokens.extend(tokens)
        self.cache.attach(row, len(tokens) if limit is None else limit)
        self.rows.append(row)
        return row

    def end(self, row: Row) -> None:
        self.cache.release(row)
        self.rows.remove(row)

    @staticmethod
    def _forget(memory, freed):
        for number in freed.tolist():
            memory.pop(number, None)


class Row:
    def __init__(self, namespace: str = "") -> None:
        self.tokens, self.slots, self.computed, self.node, self.namespace = (
            GrowableIntArray(),
            GrowableIntArray(),
            0,
            None,
            namespace,
        )


def compute(memory: Memory, row: Row, length: int) -> bool:
    if not memory.cache.grow(row, length):
        return False
    row.computed = length
    for index, page in enumerate(memory.cache.pages(row).tolist()):
        held = tuple(row.tokens.array[: min(length, (index + 1) * memory.size)].tolist())
        if page not in memory.pages or len(memory.pages[page][1]) < len(held):
            memory.pages[page] = (row.namespace, held)
    return True


def check(memory: Memory) -> None:
    """Every row's whole pages, and all that is kept, hold what they should."""
    memory.cache.check(memory.cache.pages(row) for row in memory.rows)
    for row in memory.rows:
        tokens = tuple(row.tokens.array.tolist())
        for index, page in enumerate(memory.cache.pages(row)[: row.computed // memory.size].tolist()):
            assert memory.pages[page] == (row.namespace, tokens[: (index + 1) * memory.size])
    for run in memory.host._runs():
        namespace, tokens = whole(run)
        for index, place in enumerate(run.places.tolist(), (len(tokens) - len(run.tokens)) // memory.size):
            assert not place or memory.places[place] == (namespace, tokens[: memory.size * (index + 1)])


def whole(run: Any) -> Prefix:
    path = []
    while len(run.tokens):
        path.append(run)
        run = run.parent
    return run.key, tuple(int(token) for step in reversed(path) for token in step.tokens)


def run(memory: Memory, tokens, namespace: str = "") -> int:
    """Compute a text and let go of it; how many of its tokens did not have to be computed."""
    row = memory.open(tokens, namespace)
    found = row.computed
    assert compute(memory, row, len(tokens))
    check(memory)
    memory.end(row)
    return found


def text(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


@pytest.mark.parametrize("size", [1, 4])
def test_what_the_pool_had_no_room_for_comes_back(size):
    memory = Memory(128 // size, 512 // size, size)
    texts = [text(1000 * i, 100) for i in range(5)]
    assert [run(memory, tokens) for tokens in texts] == [0] * 5
    assert [run(memory, tokens) for tokens in texts] == [100] * 5
    assert memory.host.loaded >= 400
    saved = memory.saved
    assert [run(memory, tokens) for tokens in texts] == [100] * 5
    assert memory.saved < saved + 200 // size, "copied again what was there"


def test_a_shared_beginning_is_kept_once_and_split_where_texts_part():
    memory = Memory(80, 400)
    stem = text(0, 40)
    texts = [stem + text(1000 * (i + 1), 30) for i in range(6)]
    for tokens in texts:
        run(memory, tokens)
    memory.cache.move_out()
    assert memory.cache.pool.free == memory.cache.pool.total
    assert memory.host.tokens == 40 + 6 * 30
    assert run(memory, stem[:35] + text(9000, 20)) == 35
    assert run(memory, texts[0]) == 70


def test_the_end_of_a_text_is_kept_while_its_beginning_is_still_in_the_tree():
    memory = Memory(100, 400)
    first = memory.open(text(0, 50))
    compute(memory, first, 50)
    memory.cache.publish(first)  # locked: stays
    run(memory, text(0, 90))
    memory.cache.tree.evict(40)
    assert memory.host.tokens == 40 and len(memory.host.find("", np.arange(90, dtype=np.int32), 0)) == 0
    assert memory.cache.reusable(np.arange(90, dtype=np.int32), "") == 90
    assert run(memory, text(0, 90)) == 90
    memory.end(first)


def test_a_text_that_leaves_in_pieces_is_one_run():
    memory = Memory(200, 400)
    run(memory, text(0, 120))
    run(memory, text(0, 60) + text(1000, 60))
    for _ in range(30):
        memory.cache.tree.evict(6)
        check(memory)
    assert memory.host.tokens == 180 and len(list(memory.host._runs())) == 3
    assert run(memory, text(0, 90)) == 90 and run(memory, text(0, 120)) == 120


def test_the_longest_unused_go_first_from_their_ends():
    memory = Memory(64, 100)
    for start in (1000, 2000, 3000):
        run(memory, text(start, 50))
    memory.cache.move_out()  # 150 tokens in 100 places
    kept = [len(memory.host.find("", np.array(text(start, 50), np.int32), 0)) for start in (1000, 2000, 3000)]
    assert kept == [0, 50, 50]
    run(memory, text(2000, 50))
    run(memory, text(4000, 30))
    memory.cache.move_out()
    assert memory.cache.reusable(np.array(text(3000, 50), np.int32), "") == 20
    assert memory.cache.reusable(np.array(text(2000, 50), np.int32), "") == 50


def test_a_beginning_takes_the_place_of_its_own_end():
    memory = Memory(36, 24, 3)
    run(memory, text(0, 75))
    memory.cache.tree.evict(1)
    memory.cache.move_out()
    check(memory)
    assert memory.host.tokens == 72 and run(memory, text(0, 75)) == 72


def test_namespaces_find_nothing_of_each_other():
    memory = Memory(64, 400)
    run(memory, text(0, 60), "a")
    memory.cache.move_out()
    assert run(memory, text(0, 60), "b") == 0
    memory.cache.move_out()
    assert memory.host.tokens == 120
    assert run(memory, text(0, 60), "a") == 60


def test_a_few_tokens_are_computed_instead():
    memory = Memory(64, 400)
    run(memory, text(0, 10))
    memory.cache.move_out()
    assert run(memory, text(0, 10)) == 0 and memory.host.loaded == 0


def test_what_does_not_fit_a_full_pool_is_computed():
    memory = Memory(64, 400)
    run(memory, text(0, 60))
    memory.cache.move_out()
    holder = memory.open(text(5000, 40))
    compute(memory, holder, 40)
    row = memory.open(text(0, 60))
    assert row.computed == 24  # all that was free
    check(memory)
    memory.end(row)
    memory.end(holder)


def test_a_flush_forgets_both():
    memory = Memory(64, 400)
    for start in (1000, 2000, 3000):
        run(memory, text(start, 50))
    assert memory.host.tokens
    memory.cache.flush()
    assert memory.host.tokens == 0 and memory.cache.pool.free == memory.cache.pool.total
    assert not memory.pages and not memory.places
    assert run(memory, text(1000, 50)) == 0


STEM = [int(bit) for bit in f"{0x9E3779B97F4A7C15F39CC0605CEDC834:0128b}"]  # no page of it is like the next
TEXTS = st.builds(
    lambda length, tail: STEM[:length] + tail, st.integers(0, 100), st.lists(st.integers(0, 1), max_size=9)
)


class TierMachine(RuleBasedStateMachine):
    """Random texts that mostly begin alike, in a pool and a host store that are both too small."""

    rows = Bundle("rows")

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(36, 24, 3)

    @rule(target=rows, tokens=TEXTS, namespace=st.sampled_from(["", "", "a"]))
    def open(self, tokens, namespace):
        known = self.memory.cache.reusable(np.array(tokens, np.int32), namespace)
        row = self.memory.open(tokens, namespace)
        assert row.computed <= known
        return row

    @rule(row=rows, tokens=st.lists(st.integers(0, 1), max_size=12))
    def append(self, row, tokens):
        row.tokens.extend(tokens)

    @rule(row=rows, part=st.sampled_from([0.3, 1, 1]))
    def compute(self, row, part):
        compute(self.memory, row, row.computed + int(part * (len(row.tokens) - row.computed)))

    @rule(tokens=TEXTS, namespace=st.sampled_from(["", "", "a"]))
    def come_and_go(self, tokens, namespace):
        row = self.memory.open(tokens, namespace)
        compute(self.memory, row, len(tokens))
        self.memory.end(row)

    @rule(row=rows)
    def publish(self, row):
        self.memory.cache.publish(row)

    @rule(row=consumes(rows))
    def close(self, row):
        self.memory.end(row)

    @rule(row=rows)
    def park(self, row):
        self.memory.cache.release(row)
        self.memory.cache.attach(row, len(row.tokens))

    @rule(pages=st.integers(1, 10))
    def evict(self, pages):
        self.memory.cache.tree.evict(pages)

    @rule()
    def move_out(self):
        self.memory.cache.move_out()

    @rule(sure=st.integers(0, 9))
    def flush(self, sure):
        if sure == 9:
            self.memory.cache.flush()

    @invariant()
    def everything_is_where_it_should_be(self):
        check(self.memory)


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
