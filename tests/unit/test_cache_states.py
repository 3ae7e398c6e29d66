"""States behind the radix tree: slots, snapshots, and what a sequence goes back
to, with every state followed by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sgl.runtime.cache import GrowableIntArray, PagePool, RecurrentPrefixCache, RecurrentStateSlots, StateCheckpoint
from sgl.runtime.cache.recurrent_state_slots import EMPTY_SLOT, FIRST_SLOT, SCRAP_SLOT
from sgl.runtime.cache.state_checkpoints import MOST, read_slot, write_slot


class Sequence:
    def __init__(self, namespace: str = "") -> None:
        self.tokens, self.slots, self.computed, self.node = GrowableIntArray(), GrowableIntArray(), 0, None
        self.trail: list[StateCheckpoint] = []
        self.into = self.branch = 0
        self.namespace = namespace


def cache_of(states: int, pages: int = 200, page_size: int = 1) -> RecurrentPrefixCache:
    return RecurrentPrefixCache(PagePool(pages, page_size), RecurrentStateSlots(states))


def computed(cache: RecurrentPrefixCache, tokens: list[int], *lengths: int) -> Sequence:
    """A sequence that was computed in steps that end at `lengths`."""
    seq = Sequence()
    seq.tokens.extend(tokens)
    for length in lengths or (len(tokens),):
        assert cache.grow(seq, length)
        cache.advance(seq, length)
    return seq


def attached(cache: RecurrentPrefixCache, tokens: list[int]) -> Sequence:
    seq = Sequence()
    seq.tokens.extend(tokens)
    cache.attach(seq, len(tokens))
    return seq


def test_slots_are_counted_and_the_first_two_belong_to_nobody() -> None:
    slots = RecurrentStateSlots(2)
    one, other = slots.take(), slots.take()
    assert {one, other} == {FIRST_SLOT, FIRST_SLOT + 1} and not slots.free
    slots.retain(one)
    slots.release(one)
    slots.retain(EMPTY_SLOT)
    slots.release(EMPTY_SLOT)
    slots.check([one, other])
    with pytest.raises(RuntimeError, match="are held"):
        slots.check([one, one])
    slots.release(one)
    slots.release(other)
    slots.check([])


def test_a_match_ends_where_a_state_is_though_keys_go_further() -> None:
    cache = cache_of(8)
    seq = computed(cache, list(range(30)), 20)
    cache.publish(seq)
    cache.grow(seq, 30)
    cache.advance(seq, 30)
    cache.publish(seq)
    other = attached(cache, [*range(25), 99])
    assert (other.computed, other.branch, cache.lost) == (20, 25, 5)
    assert read_slot(other) == seq.trail[0].slot
    cache.check([cache.pages(seq), cache.pages(other)], [seq, other])


def test_what_was_computed_again_is_not_kept_twice() -> None:
    cache = cache_of(8)
    first = computed(cache, list(range(20)))
    cache.publish(first)
    cache.release(first)
    assert cache.trails.nodes.evict()
    again = attached(cache, list(range(20)))
    cache.grow(again, 20)
    cache.advance(again, 20)
    assert cache.pool.total - cache.pool.free == 40
    cache.publish(again)
    assert cache.pool.total - cache.pool.free == 20
    cache.tree.check([cache.pages(again)])


def test_a_state_may_go_while_its_keys_stay_and_one_that_a_sequence_holds_too_does_not() -> None:
    cache = cache_of(8)
    first, second = computed(cache, list(range(10))), computed(cache, list(range(50, 60)))
    cache.publish(first)
    cache.publish(second)
    assert not cache.trails.nodes.evict()
    cache.release(first)
    assert cache.trails.nodes.evict() and not cache.trails.nodes.evict()
    assert attached(cache, list(range(10))).branch == 10 and attached(cache, list(range(50, 60))).computed == 10


def test_a_shared_state_is_read_and_never_written() -> None:
    cache = cache_of(8)
    parent = computed(cache, list(range(10)))
    children = [Sequence() for _ in range(2)]
    for child in children:
        child.tokens.extend([*range(10), 70, 71])
        assert cache.share(parent, child) == 10
    slot = parent.trail[-1].slot
    for each in (*children, parent):
        assert cache.grow(each, 11) and read_slot(each) == slot != write_slot(each)
        cache.advance(each, 11)
    assert len({read_slot(each) for each in (*children, parent)}) == 3
    cache.trails.check([parent, *children])


def test_what_leaves_no_state_takes_no_slot_and_goes_on_from_the_one_before() -> None:
    cache = cache_of(1)
    seq = computed(cache, list(range(10)), 6)
    assert cache.grow(seq, 10, False) and write_slot(seq) == SCRAP_SLOT
    cache.advance(seq, 10)
    assert not cache.stands(seq)
    cache.cut(seq, 10)
    assert seq.computed == 6 and cache.stands(seq)


def test_one_slot_is_enough_for_one_sequence() -> None:
    cache = cache_of(1)
    seq = computed(cache, list(range(40)), *range(5, 40))
    cache.publish(seq)
    assert cache.grow(seq, 40) and write_slot(seq) == read_slot(seq), "the snapshot makes way"
    cache.advance(seq, 40)
    cache.trails.check([seq])


def test_a_sequence_keeps_few_states_and_goes_back_to_the_last_before_a_cut() -> None:
    cache = cache_of(16)
    seq = computed(cache, list(range(150)), *range(1, 151))
    assert len(seq.trail) == MOST and [mark.length for mark in seq.trail][1:] == [149, 150]
    far = seq.trail[0].length
    assert 150 - far >= 2
    cache.cut(seq, 149)
    assert seq.computed == 149
    cache.cut(seq, 148)
    assert seq.computed == far
    cache.cut(seq, far - 1)
    assert seq.computed == 0 and not seq.trail and not len(seq.slots)
    cache.trails.check([seq])


def test_a_step_that_broke_off_is_forgotten_where_it_wrote() -> None:
    cache = cache_of(1)
    seq = computed(cache, list(range(10)), 6)
    assert cache.grow(seq, 10)
    cache.spoil(seq)
    assert seq.computed == 0 and cache.trails.slots.free == 1


class StateMachine(RuleBasedStateMachine):
    """Random sequences take, compute, share, cut and release; pages and slots are
    followed by the prefix whose content they have.
    """

    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = cache_of(9, 60, 3)
        self.content: dict[int, tuple[Any, ...]] = {}  # slot of a token -> namespace and whole prefix
        self.states: dict[int, tuple[Any, ...]] = {
            EMPTY_SLOT: ()
        }  # slot of a state -> namespace and prefix; () for none
        self.alive: list[Sequence] = []

    @rule(target=sequences, tokens=st.lists(st.integers(0, 1), max_size=20), namespace=st.sampled_from("ab"))
    def open(self, tokens, namespace):
        seq = Sequence(namespace)
        seq.tokens.extend(tokens)
        self.cache.attach(seq, len(tokens))
        self.alive.append(seq)
        return seq

    @rule(seq=sequences, tokens=st.lists(st.integers(0, 1), max_size=6))
    def append(self, seq, tokens):
        seq.tokens.extend(tokens)

    @rule(seq=sequences, part=st.floats(0.1, 1), leaves=st.sampled_from([True, True, True, False]))
    def compute(self, seq, part, leaves):
        hi = seq.computed + int(part * (len(seq.tokens) - seq.computed))
        if hi == seq.computed or not self.cache.stands(seq) or not self.cache.grow(seq, hi, leaves):
            return
        prefix = (seq.namespace, *seq.tokens.array.tolist())
        assert self.states[read_slot(seq)] == (prefix[: seq.computed + 1] if seq.computed else ())
        for place in range(seq.computed, hi):
            self.content[int(seq.slots.array[place])] = prefix[: place + 2]
        self.states[write_slot(seq)] = prefix[: hi + 1]
        self.cache.advance(seq, hi)

    @rule(seq=sequences)
    def fail(self, seq):
        if self.cache.stands(seq) and len(seq.tokens) > seq.computed and self.cache.grow(seq, len(seq.tokens)):
            self.states[write_slot(seq)] = ("spoilt",)
            self.cache.spoil(seq)

    @rule(seq=sequences)
    def publish(self, seq):
        self.cache.publish(seq)

    @rule(seq=sequences)
    def rejoin(self, seq):
        if self.cache.stands(seq) and seq.computed:
            self.cache.rejoin(seq, len(seq.tokens))

    @rule(seq=sequences, part=st.floats(0, 1))
    def cut(self, seq, part):
        length = int(part * len(seq.tokens))
        self.cache.cut(seq, length)
        assert seq.computed <= length and self.cache.stands(seq)
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

    @rule()
    def evict_state(self):
        self.cache.trails.nodes.evict()

    @rule(seq=sequences)
    def shed(self, seq):
        self.cache.shed(seq)

    @invariant()
    def everything_is_where_it_is_said_to_be(self):
        for seq in self.alive:
            prefix = (seq.namespace, *seq.tokens.array.tolist())
            for place in range(seq.computed):
                assert self.content[int(seq.slots.array[place])] == prefix[: place + 2]
            for mark in seq.trail:
                assert self.states[mark.slot] == prefix[: mark.length + 1]

    @invariant()
    def a_node_has_the_state_of_its_path(self):
        for name, root in self.cache.tree.roots.items():
            pending = [(root, (name,))]
            while pending:
                node, before = pending.pop()
                path = (*before, *node.tokens.tolist())
                assert not node.state or self.states[node.state] == path
                pending += [(child, path) for child in node.children.values()]

    @invariant()
    def nothing_is_lost(self):
        self.cache.check((self.cache.pages(seq) for seq in self.alive), self.alive)


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_what_can_be_used_is_found_without_a_change() -> None:
    cache = cache_of(8, page_size=2)
    seq = computed(cache, list(range(20)), 7, 8)
    cache.publish(seq)
    row = np.array([*range(12)], np.int32)
    assert cache.reusable(row, "") == cache.tree.match_length(row) == 8 == 2 * len(cache.tree.match_pages(row))
    assert cache.reusable(row[:7], "") == 0
