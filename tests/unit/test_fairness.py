"""Virtual token counters, the queue by tenants, and the order in which they have their turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sgl.runtime.cache import GrowableIntArray
from sgl.runtime.scheduling.tenant_fairness import AdmissionCandidate, TenantCounters, WaitingQueue, fair_order
from sgl.runtime.sequences.sequence_options import SequenceOptions


class Waiting:
    def __init__(self, arrival: int, tenant: str = "", priority: int = 0, slots: int = 0) -> None:
        self.arrival, self.terms, self.slots = (
            arrival,
            SequenceOptions(priority, tenant),
            GrowableIntArray(range(slots)),
        )


def test_who_comes_starts_with_the_lowest_of_those_who_wait():
    counters = TenantCounters()
    for name in "ab":
        counters.tenant_arrived(name)
    counters.charge("a", 100, 0)
    counters.charge("b", 10, 10)
    assert counters.given == {"a": 100, "b": 20}, "a sampled token is twice as heavy as a computed one"
    counters.tenant_arrived("c", ["a", "b"])
    assert counters.given["c"] == 20


def test_one_who_runs_and_does_not_wait_saves_nothing_up():
    counters = TenantCounters()
    for name in "ab":
        counters.tenant_arrived(name)
    counters.charge("a", 1000, 0)
    counters.charge("b", 10, 0)
    counters.tenant_arrived("c")
    assert counters.given["c"] == 1000, "nobody waits: b has no claim to what a was given"
    counters.tenant_arrived("b", ["a"])
    assert counters.given["b"] == 1000
    counters.charge("a", 1000, 0)
    counters.tenant_arrived("b", ["a", "b"])
    assert counters.given["b"] == 1000, "who waits keeps its turn"


def test_who_leaves_takes_a_debt_along_but_no_credit():
    counters = TenantCounters()
    for name in "ab":
        counters.tenant_arrived(name)
    counters.charge("a", 100, 0)
    for name, expected in (("a", 100), ("b", 100)):
        counters.leave(name)
        counters.tenant_arrived(name)
        assert counters.given[name] == expected
    counters.leave("a")
    counters.leave("b")
    counters.tenant_arrived("c")
    assert counters.given["c"] == 100, "nobody is there: level with who left last"


def test_one_tenant_alone_is_not_counted():
    counters = TenantCounters()
    counters.tenant_arrived("a")
    assert counters.alone and counters.coarse("a") == 0
    counters.tenant_arrived("b")
    assert not counters.alone


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9)), max_size=300))
def test_any_number_of_tenants_leaves_few_behind(moves):
    counters, here = TenantCounters(), []
    for number, (tokens, out) in enumerate(moves):
        name = str(number)
        counters.tenant_arrived(name)
        counters.charge(name, tokens, 0)
        here.append(name)
        if out > 2:
            counters.leave(here.pop(0))
        assert set(counters.present) == set(here) and set(here) <= set(counters.given)
    for name in here:
        counters.leave(name)
    assert not counters.present


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 2)), max_size=40), st.randoms())
def test_the_queue_is_in_order_whoever_comes_and_goes(those, random):
    queue = WaitingQueue()
    made = [Waiting(number, *one) for number, one in enumerate(those, 1)]
    random.shuffle(made)
    for seq in made:
        queue.add(seq)
    gone = made[: len(made) // 3]
    for seq in gone:
        queue.remove(seq)
    left = sorted(made[len(gone) :], key=lambda seq: (-seq.terms.priority, seq.arrival))
    assert list(queue) == left and len(queue) == len(left)
    assert set(queue.holding) == {seq for seq in left if len(seq.slots)}
    if left:
        assert queue.top == left[0].terms.priority
    for seq in left:
        like = [other for other in left if other.terms == seq.terms]
        assert queue.first_matching(seq) is like[0]


def test_turns_go_by_priority_then_to_who_got_least_and_change_with_what_is_given():
    counters = TenantCounters()
    for name in "ab":
        counters.tenant_arrived(name)
    lanes = {"a": [Waiting(1, "a", 1), Waiting(2, "a"), Waiting(3, "a")], "b": [Waiting(4, "b"), Waiting(5, "b")]}
    order = []
    turns = fair_order(
        counters, {"a": 1, "b": 0}, lambda name: [AdmissionCandidate(seq, 0, True) for seq in lanes[name]]
    )
    for offer in turns:
        order.append(offer.seq.arrival)
        counters.charge(offer.seq.terms.tenant, 10 if len(order) == 1 else 7, 0)
    assert order == [1, 4, 5, 2, 3]
