"""Rows of windowed layers behind the radix tree: who holds them, who may take them, and what is matched, with every row followed by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from sgl.runtime.cache import IntRow, Mark, PagePool, WindowCache, WindowPages
from sgl.runtime.cache.window_pages import SLACK, span
from sgl.runtime.errors import OutOfPages


class Sequence:
    def __init__(self, namespace: str = "") -> None:
        self.tokens, self.slots, self.computed, self.node = IntRow(), IntRow(), 0, None
        self.trail: list[Mark] = []
        self.into = self.branch = self.window = 0
        self.namespace = namespace


def cache_of(places: int, reach: int, pages: int = 400, page_size: int = 1, freed: Any = None) -> WindowCache:
    windows = WindowPages(pages, places, page_size, reach, freed)
    return WindowCache(PagePool(pages, page_size, windows.drop), windows)


def computed(cache: WindowCache, tokens: list[int], *lengths: int) -> Sequence:
    """A sequence that was computed in steps that end at `lengths`."""
    seq = Sequence()
    seq.tokens.extend(tokens)
    for length in lengths or (len(tokens),):
        assert cache.grow(seq, length)
        cache.advance(seq, length)
    return seq


def attached(cache: WindowCache, tokens: list[int]) -> Sequence:
    seq = Sequence()
    seq.tokens.extend(tokens)
    cache.attach(seq, len(tokens))
    return seq


def checked(cache: WindowCache, *seqs: Sequence) -> None:
    cache.check([cache.pages(seq) for seq in seqs], seqs)


def test_what_falls_behind_the_window_is_given_back_and_goes_first() -> None:
    cache = cache_of(200, reach=10)
    seq = computed(cache, list(range(150)))
    behind = 150 - 10 + 1 - SLACK
    assert (seq.window, cache.windows.given_back, cache.windows.loose, cache.windows.held) == (behind, behind, behind, 150 - behind)
    other = computed(cache, list(range(500, 600)))
    assert not cache.windows.where[cache.pages(seq)[:50]].any() and cache.windows.where[cache.pages(seq)[50:]].all()
    checked(cache, seq, other)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_prefix_can_be_used_up_to_where_a_whole_window_is_there(page_size: int) -> None:
    cache = cache_of(200, reach=9, page_size=page_size)
    seq = computed(cache, list(range(100)))
    cache.publish(seq)
    cache.release(seq)
    assert cache.reusable(np.array([*range(62), 1], np.int32), "") == 62 // page_size * page_size
    cache.windows.make_room(cache.windows.free + cache.windows.loose - 32 // page_size)
    other = attached(cache, [*range(62), 1, 2])
    assert (other.computed, other.branch) == (0, 62 // page_size * page_size) and cache.lost == other.branch
    assert cache.reusable(np.arange(100, dtype=np.int32), "") == 100


def test_the_ends_of_texts_outlive_what_is_behind_a_window() -> None:
    cache = cache_of(300, reach=10, pages=1000)
    texts = [list(range(at, at + 100)) for at in (0, 1000, 2000)]
    for text in texts:
        cache.release(computed(cache, text))
    busy = computed(cache, list(range(3000, 3240)), 120, 240)
    assert [cache.reusable(np.array(text, np.int32), "") for text in texts] == [100] * 3
    cache.grow(busy, 240)
    checked(cache, busy)


def test_what_was_computed_again_gives_the_tree_its_rows_and_is_not_kept_twice() -> None:
    cache = cache_of(200, reach=10)
    first = computed(cache, list(range(100)))
    cache.publish(first)
    cache.release(first)
    cache.windows.make_room(cache.windows.total)
    again = attached(cache, list(range(100)))
    assert again.computed == 0 and cache.lost == 100
    cache.grow(again, 100)
    cache.advance(again, 100)
    assert cache.pool.total - cache.pool.free == 200
    cache.publish(again)
    assert cache.pool.total - cache.pool.free == 100 and cache.windows.where[cache.pages(again)].all()
    checked(cache, again)
    cache.release(again)
    assert attached(cache, list(range(70))).computed == 70


def test_where_prompts_part_the_rows_of_the_fork_outlive_the_others() -> None:
    cache = cache_of(200, reach=10)
    cache.release(computed(cache, list(range(100))))
    cache.windows.make_room(cache.windows.total)
    second = attached(cache, [*range(60), *range(500, 590)])
    assert (second.computed, second.branch) == (0, 60)
    cache.grow(second, 150)
    cache.advance(second, 150)
    cache.release(second)
    cache.windows.make_room(cache.windows.total - 30)
    assert attached(cache, [*range(60), 7, 8]).computed == 60


def test_who_goes_back_further_than_is_held_starts_where_a_window_is_there() -> None:
    cache = cache_of(150, reach=10)
    seq = computed(cache, list(range(140)))
    cache.cut(seq, 130)
    assert seq.computed == 130
    cache.cut(seq, 60)  # no longer held, but nobody took it
    assert seq.computed == 60 and cache.windows.held == 9
    cache.grow(seq, 140)
    cache.advance(seq, 140)
    other = computed(cache, list(range(500, 608)))
    cache.cut(seq, 60)
    assert seq.computed == 0 and not len(seq.slots)
    checked(cache, seq, other)


def test_without_room_nobody_grows_and_nothing_is_taken() -> None:
    cache = cache_of(100, reach=50)
    seq = computed(cache, list(range(90)))
    other = Sequence()
    other.tokens.extend(range(500, 600))
    assert not cache.grow(other, 50) and not len(other.slots) and cache.windows.where[cache.pages(seq)].all()
    assert cache.grow(other, 10)
    checked(cache, seq, other)


def test_a_sequence_holds_no_more_than_is_said() -> None:
    for page_size in (1, 3, 64):
        cache = cache_of(400, reach=20, page_size=page_size)
        seq = Sequence()
        seq.tokens.extend(range(700))
        for length in range(1, 700, 7):
            cache.grow(seq, length)
            cache.advance(seq, length)
            assert (len(cache.pages(seq)) - seq.window) * page_size <= span(20, page_size)


def test_pins_may_not_hold_all_rows() -> None:
    cache = cache_of(100, reach=10)
    pinned = [computed(cache, list(range(at, at + 40))) for at in (0, 1000)]
    cache.check_pinned(pinned[:1])
    with pytest.raises(OutOfPages, match="80 of the 100 pages of layers with a window would be pinned"):
        cache.check_pinned(pinned)


def test_rows_that_are_gone_are_never_named() -> None:
    cache = cache_of(100, reach=10)
    seq = computed(cache, list(range(90)))
    row = cache.windows.slots(seq.slots.array, 90)
    assert not row[:81].any() and row[81:].all()
    cache.windows.let_go(cache.pages(seq)[seq.window :])
    cache.windows.make_room(100)
    with pytest.raises(RuntimeError, match="behind 90 of 90 tokens"):
        cache.windows.slots(seq.slots.array, 90)


class StateMachine(RuleBasedStateMachine):
    """Sequences over a small alphabet, which share much; `content` and `rows` say what was written where."""

    sequences = Bundle("sequences")

    @initialize(page_size=st.sampled_from([1, 1, 2, 3]), reach=st.integers(1, 9), places=st.integers(8, 40))
    def begin(self, page_size: int, reach: int, places: int) -> None:
        self.content: dict[int, Any] = {}
        self.rows: dict[int, Any] = {}
        self.alive: list[Sequence] = []
        windows = WindowPages(60, places, page_size, reach, self.poison)
        self.cache = WindowCache(PagePool(60, page_size, self.freed), windows)
        windows.slack, windows.lot = page_size, 1  # so that short texts leave their windows

    def freed(self, pages: Any) -> None:
        self.cache.windows.drop(pages)
        size = self.cache.pool.page_size
        for page in pages.tolist():
            for slot in range(page * size, page * size + size):
                self.content.pop(slot, None)

    def poison(self, places: Any) -> None:
        size = self.cache.pool.page_size
        for place in places.tolist():
            for slot in range(place * size, place * size + size):
                self.rows.pop(slot, None)

    @rule(target=sequences, tokens=st.lists(st.integers(0, 1), max_size=24), namespace=st.sampled_from(["", "n"]))
    def open(self, tokens: list[int], namespace: str) -> Sequence:
        seq = Sequence(namespace)
        seq.tokens.extend(tokens)
        self.cache.attach(seq, len(tokens))
        self.alive.append(seq)
        return seq

    @rule(seq=sequences, part=st.floats(0, 1), more=st.lists(st.integers(0, 1), max_size=6))
    def compute(self, seq: Sequence, part: float, more: list[int]) -> None:
        seq.tokens.extend(more)
        length = seq.computed + round(part * (len(seq.tokens) - seq.computed))
        if not self.cache.grow(seq, length):
            return
        done, row = seq.computed, self.cache.windows.slots(seq.slots.array[:length], seq.computed)
        prefix = (seq.namespace, *seq.tokens.array.tolist())
        for place in range(max(0, done - self.cache.windows.reach + 1), done):
            assert self.rows[int(row[place])] == prefix[: place + 2], "a row of another token is read"
        for place in range(done, length):
            self.content[int(seq.slots.array[place])] = self.rows[int(row[place])] = prefix[: place + 2]
        self.cache.advance(seq, length)

    @rule(seq=sequences)
    def publish(self, seq: Sequence) -> None:
        self.cache.publish(seq)

    @rule(seq=sequences)
    def rejoin(self, seq: Sequence) -> None:
        if seq.computed:
            self.cache.rejoin(seq, len(seq.tokens))

    @rule(seq=sequences, part=st.floats(0, 1))
    def cut(self, seq: Sequence, part: float) -> None:
        length = int(part * len(seq.tokens))
        self.cache.cut(seq, length)
        assert seq.computed <= length
        seq.tokens.truncate(length)

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: Sequence) -> Sequence:
        child = Sequence(parent.namespace)
        child.tokens.extend(parent.tokens.array)
        self.cache.share(parent, child)
        self.alive.append(child)
        return child

    @rule(seq=consumes(sequences), publish=st.booleans())
    def close(self, seq: Sequence, publish: bool) -> None:
        self.cache.release(seq, publish)
        self.alive.remove(seq)

    @rule(pages=st.integers(1, 10))
    def evict(self, pages: int) -> None:
        self.cache.tree.evict(pages)

    @rule(count=st.integers(1, 40))
    def take(self, count: int) -> None:
        self.cache.windows.make_room(count)

    @invariant()
    def everything_is_where_it_is_said_to_be(self) -> None:
        for seq in self.alive:
            prefix = (seq.namespace, *seq.tokens.array.tolist())
            row = self.cache.windows.slots(seq.slots.array, seq.computed)
            for place in range(seq.computed):
                assert self.content[int(seq.slots.array[place])] == prefix[: place + 2]
                if place > seq.computed - self.cache.windows.reach:
                    assert self.rows[int(row[place])] == prefix[: place + 2]

    @invariant()
    def nothing_is_lost(self) -> None:
        checked(self.cache, *self.alive)


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
