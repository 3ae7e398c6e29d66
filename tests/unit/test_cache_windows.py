"""Rows of windowed layers behind the radix tree: who holds them, who may take them, and
what is matched, with every row followed by value.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from sgl.runtime.cache import GrowableIntArray, PagePool, StateCheckpoint, WindowPages, WindowPrefixCache
from sgl.runtime.cache.window_pages import SLACK, span
from sgl.runtime.errors import OutOfPages
from sgl.runtime.scheduling.batch_admission import kv_pages_exhausted


class Sequence:
    def __init__(self, namespace: str = "") -> None:
        self.tokens, self.slots, self.computed, self.node = GrowableIntArray(), GrowableIntArray(), 0, None
        self.trail: list[StateCheckpoint] = []
        self.into = self.branch = self.window = 0
        self.namespace = namespace


def cache_of(places: int, reach: int, pages: int = 400, page_size: int = 1, freed: Any = None) -> WindowPrefixCache:
    windows = WindowPages(pages, places, page_size, reach, freed)
    return WindowPrefixCache(PagePool(pages, page_size, windows.drop), windows)


def computed(cache: WindowPrefixCache, tokens: list[int], *lengths: int) -> Sequence:
    """A sequence that was computed in steps that end at `lengths`."""
    seq = Sequence()
    seq.tokens.extend(tokens)
    for length in lengths or (len(tokens),):
        assert cache.grow(seq, length)
        cache.advance(seq, length)
    return seq


def attached(cache: WindowPrefixCache, tokens: list[int]) -> Sequence:
    seq = Sequence()
    seq.tokens.extend(tokens)
    cache.attach(seq, len(tokens))
    return seq


def checked(cache: WindowPrefixCache, *seqs: Sequence) -> None:
    cache.check([cache.pages(seq) for seq in seqs], seqs)


def test_what_falls_behind_the_window_is_given_back_and_goes_first() -> None:
    cache = cache_of(200, reach=10)
    seq = computed(cache, list(range(150)))
    behind = 150 - 10 + 1 - SLACK
    assert (seq.window, cache.windows.given_back, cache.windows.loose, cache.windows.held) == (
        behind,
        behind,
        behind,
        150 - behind,
    )
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


def test_who_stands_on_what_others_computed_again_takes_their_pages() -> None:
    """Else a pinned text would have its pages twice: its own, and the tree's, which its lock keeps."""
    cache = cache_of(200, reach=10)
    text = list(range(100))
    kept = computed(cache, text)
    cache.publish(kept)
    busy = computed(cache, list(range(500, 684)), 60, 120, 184)
    assert not cache.windows.where[cache.pages(kept)[:55]].any()
    again = attached(cache, [*text[:55], 7, 8])
    assert again.computed == 0 and not cache.share_equal_prefixes([kept])
    assert cache.grow(again, 57)
    cache.advance(again, 57)
    cache.publish(again)
    own, free = cache.pages(kept).copy(), cache.pool.free
    assert not np.isin(own[:55], cache.tree.pages_of(kept.node)).any()
    assert (
        cache.share_equal_prefixes([kept, again, busy])
        and cache.pool.free == free + 55
        and not cache.share_equal_prefixes([kept, again, busy])
    )
    assert (
        cache.pages(kept)[:55].tolist() == cache.pages(again)[:55].tolist()
        and cache.pages(kept)[55:].tolist() == own[55:].tolist()
    )
    checked(cache, kept, again, busy)
    cache.release(again)
    cache.release(busy)
    assert cache.windows.usable(cache.pages(kept)) == 100


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
    cache.windows.make_room(cache.windows.total - 100)
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


def test_where_pages_lack_no_cached_rows_are_taken() -> None:
    cache = cache_of(30, reach=10, pages=40)
    cache.release(computed(cache, list(range(20))))
    busy = computed(cache, list(range(500, 510)))
    cache.tree.evict(20)
    cache.release(computed(cache, list(range(20))))
    holder = Sequence()
    holder.tokens.extend(range(900, 990))
    there = cache.windows.loose
    assert not cache.grow(holder, 41) and cache.windows.loose == there == 20
    assert cache.grow(holder, 20)
    checked(cache, busy, holder)


def test_the_refusal_names_what_lacks() -> None:
    for places, wanted in ((30, "more window_tokens"), (400, "larger kv_tokens")):
        cache = cache_of(places, reach=10, pages=60)
        error = kv_pages_exhausted(cache, 100, 100, 0)
        assert wanted in str(error)


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
    with pytest.raises(RuntimeError, match="after 90 of 90 tokens"):
        cache.windows.slots(seq.slots.array, 90)


class Walk:
    """Random moves of sequences over a small alphabet, which share much.

    `content` and `rows` say what was written where.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.content: dict[int, Any] = {}
        self.rows: dict[int, Any] = {}
        self.alive: list[Sequence] = []
        self.size = self.random.choice([1, 1, 2, 3])
        self.windows = WindowPages(
            120 // self.size,
            self.random.randint(30, 90) // self.size,
            self.size,
            self.random.randint(1, 9),
            self.poison,
        )
        self.windows.slack, self.windows.lot = self.size, 1  # so that short texts leave their windows
        self.cache = WindowPrefixCache(PagePool(120 // self.size, self.size, self.freed), self.windows)
        self.back = 0

    def freed(self, pages: Any) -> None:
        self.windows.drop(pages)
        for slot in self.slots(pages):
            self.content.pop(slot, None)

    def poison(self, places: Any) -> None:
        for slot in self.slots(places):
            self.rows.pop(slot, None)

    def slots(self, pages: Any) -> list[int]:
        return [slot for page in pages.tolist() for slot in range(page * self.size, page * self.size + self.size)]

    def open(self) -> None:
        seq = Sequence(self.random.choice("aab"))
        for _ in range(self.random.randint(1, 4)):
            seq.tokens.extend(self.random.choice([[0] * 7, [1] * 5, [0, 1] * 4, [self.random.randint(0, 3)]]))
        self.cache.attach(seq, len(seq.tokens))
        self.alive.append(seq)

    def compute(self, seq: Sequence) -> None:
        seq.tokens.extend(self.random.choices([0, 1], k=self.random.choice([0, 1, 6])))
        done, length = seq.computed, self.random.randint(seq.computed, len(seq.tokens))
        if not self.cache.grow(seq, length):
            return
        row = self.windows.slots(seq.slots.array[:length], done)
        prefix = self.prefix(seq)
        for place in range(max(0, done - self.windows.reach + 1), done):
            assert self.rows[int(row[place])] == prefix[: place + 2], "a row of another token is read"
        for place in range(done, length):
            self.content[int(seq.slots.array[place])] = self.rows[int(row[place])] = prefix[: place + 2]
        self.cache.advance(seq, length)

    def compute_all(self, seq: Sequence) -> None:
        for _ in range(4):
            self.compute(seq)

    def publish(self, seq: Sequence) -> None:
        self.cache.publish(seq)
        whole = seq.computed - seq.computed % self.size
        found = self.cache.tree.match_pages(seq.tokens.array[:whole], seq.namespace)
        assert found.tolist() == self.cache.pages(seq)[: len(found)].tolist() and len(found) * self.size == whole
        assert self.windows.usable(found) == whole or self.windows.first(whole) < seq.window

    def rejoin(self, seq: Sequence) -> None:
        if seq.computed:
            self.cache.rejoin(seq, len(seq.tokens))

    def cut(self, seq: Sequence) -> None:
        length = self.random.randint(0, len(seq.tokens))
        wanted = min(length, seq.computed)
        self.cache.cut(seq, length)
        assert seq.computed <= wanted
        self.back += seq.computed < wanted - self.size
        seq.tokens.truncate(length)

    def cut_a_little(self, seq: Sequence) -> None:
        length = max(0, len(seq.tokens) - self.random.randint(0, self.size))
        self.cache.cut(seq, length)
        seq.tokens.truncate(length)

    def fork(self, seq: Sequence) -> None:
        child = Sequence(seq.namespace)
        child.tokens.extend(seq.tokens.array)
        self.cache.share(seq, child)
        self.alive.append(child)

    def close(self, seq: Sequence) -> None:
        self.cache.release(seq, self.random.random() < 0.7)
        self.alive.remove(seq)

    def evict(self) -> None:
        self.cache.tree.evict(self.random.randint(1, 10))

    def take(self) -> None:
        assert self.windows.make_room(self.windows.free + self.random.randint(0, self.windows.loose))

    def prefix(self, seq: Sequence) -> tuple[Any, ...]:
        return (seq.namespace, *seq.tokens.array.tolist())

    def check(self) -> None:
        for seq in self.alive:
            prefix = self.prefix(seq)
            row = self.windows.slots(seq.slots.array, seq.computed)
            for place in range(seq.computed):
                assert self.content[int(seq.slots.array[place])] == prefix[: place + 2]
                assert place <= seq.computed - self.windows.reach or self.rows[int(row[place])] == prefix[: place + 2]
        checked(self.cache, *self.alive)

    def move(self) -> None:
        moves: list[Any] = (
            [self.compute] * 6
            + [self.compute_all] * 2
            + [self.publish, self.rejoin, self.cut, self.cut_a_little, self.fork]
        )
        if self.alive and self.random.random() < 0.75:
            seq = self.random.choice(self.alive)
            (self.close if len(self.alive) > 5 and self.random.random() < 0.3 else self.random.choice(moves))(seq)
        else:
            self.random.choice([self.open, self.open, self.open, self.take, self.evict])()


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(20))
def test_random_walks(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(600):
        walk.move()
        walk.check()
    assert walk.windows.given_back and (walk.cache.lost or walk.back or seed % 2)
    for seq in walk.alive:
        walk.cache.release(seq)
    walk.cache.flush()
    assert walk.cache.pool.free == walk.cache.pool.total and walk.windows.free == walk.windows.total
