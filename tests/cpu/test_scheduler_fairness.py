"""Who goes first: priorities, tenants, short requests beside long ones, and that everybody gets there."""

from __future__ import annotations

import time

import pytest
from test_engine import prompt, run
from test_scheduler_pressure import FOREVER, LONG, Held, Running, make, some

__all__ = ["make"]


def ask(engine, tokens, params, finished: list, name, **terms):
    """A request of its own; `name` is noted when it is done."""
    sequence = engine.open(**terms)
    sequence.extend(tokens)
    future = sequence.generate(params)
    future.add_done_callback(lambda done: finished.append(name))
    sequence.close()
    return future


def noted(finished: list, name) -> int:
    """The place of `name`: who waits for a future may be there before its callbacks have run."""
    last = time.monotonic() + FOREVER
    while name not in finished and time.monotonic() < last:
        time.sleep(0.001)
    return finished.index(name)


def wait(futures) -> list:
    return [future.result(FOREVER) for future in futures]


# priorities


@pytest.mark.parametrize("limit", [{"max_running": 2}, {"kv_tokens": 150}])
@pytest.mark.parametrize("run_ahead", [False, True])
def test_the_urgent_take_the_place_of_others_who_lose_no_token(make, limit, run_ahead):
    reference = make()
    patient = [run(reference, prompt(seed, 30), some(80)) for seed in (1, 2)]
    engine = make(run_ahead=run_ahead, **limit)
    running = [Running(engine, prompt(seed, 30), some(80)) for seed in (1, 2)]
    running[0].wait()
    urgent = engine.open(priority=1)
    urgent.extend(prompt(3, 30))
    assert urgent.generate(some(8)).result(FOREVER).token_ids == run(reference, prompt(3, 30), some(8))
    assert not all(one.future.done() for one in running)
    assert [result.token_ids for result in wait(one.future for one in running)] == patient
    assert engine.stats().preemptions >= 1


def test_the_urgent_do_not_wait_for_generations_that_take_every_token_of_a_step(make):
    engine, finished = make(step_tokens=4, max_running=16), []
    patient = [Running(engine, prompt(n, 10), some(150)).wait() for n in range(4)]
    urgent = ask(engine, prompt(9, 20), some(3), finished, "urgent", priority=1)
    for one in patient:
        one.future.add_done_callback(lambda _: finished.append("patient"))
    wait([urgent, *(one.future for one in patient)])
    assert finished[0] == "urgent"


def test_equals_do_not_take_each_others_place(make):
    engine = make(max_running=1)
    first = Running(engine, prompt(1, 10), some(100)).wait()
    second = engine.open()
    second.extend(prompt(2, 10))
    second.generate(some(2)).result(FOREVER)
    assert first.future.done() and engine.stats().preemptions == 0


def test_a_stream_of_urgent_requests_does_not_make_others_lose_their_place_all_the_time(make):
    """Between two losses lie more and more steps, so that even a place among the urgent moves on."""
    engine = make(max_running=1)
    patient = Running(engine, prompt(1, 20), some(100)).wait()
    finished: list[int] = []

    def next_one(number: int) -> None:
        if number < 200 and not patient.future.done():
            with_next = ask(engine, prompt(number + 2, 4), some(2), finished, number, priority=1)
            with_next.add_done_callback(lambda _: next_one(number + 1))

    engine._core.call(lambda: next_one(0))
    assert len(patient.future.result(FOREVER).token_ids) == 100
    losses = engine.stats().preemptions
    assert 2 <= losses <= 3 + engine.stats().steps / 64 and len(finished) < 100


def test_the_least_urgent_end_when_the_urgent_stop(make):
    engine, finished = make(max_running=4, kv_tokens=300), []
    with Held(engine):
        lowest = [ask(engine, prompt(n, 40), some(20), finished, "low", priority=-1) for n in range(6)]
        urgent = [ask(engine, prompt(100 + n, 40), some(10), finished, "high", priority=2) for n in range(20)]
    wait(lowest + urgent)
    assert finished == ["high"] * 20 + ["low"] * 6


# tenants


def shares(engine, tenants: tuple[str, str], length: tuple[int, int] = (20, 20)) -> list[str]:
    """The order in which forty requests of the first and ten later ones of the second end."""
    finished: list[str] = []
    with Held(engine):
        many = [ask(engine, prompt(n, length[0]), some(20), finished, "many", tenant=tenants[0]) for n in range(40)]
        few = [ask(engine, prompt(50 + n, length[1]), some(20), finished, "few", tenant=tenants[1]) for n in range(10)]
    wait(many + few)
    return finished


def test_a_tenant_with_few_requests_does_not_queue_behind_one_with_many(make):
    assert shares(make(max_running=2), ("a", "a"))[:30] == ["many"] * 30
    finished = shares(make(max_running=2), ("a", "b"))
    assert abs(finished[:20].count("few") - 10) <= 2


def test_what_counts_is_tokens_not_requests(make):
    """Five times the prompt, and so about half of the requests of the same cost."""
    finished = shares(make(max_running=2), ("a", "b"), (120, 20))
    ended = max(place for place, name in enumerate(finished) if name == "few")
    assert 2 <= finished[:ended].count("many") <= 6  # 160 for each of them, 60 for each of the few


def test_tenants_count_only_among_equals(make):
    engine, finished = make(max_running=1), []
    with Held(engine):
        spent = [ask(engine, prompt(n, 60), some(20), finished, "urgent", tenant="a", priority=1) for n in range(5)]
        fresh = [ask(engine, prompt(9, 5), some(2), finished, "fresh", tenant="b")]
    wait(spent + fresh)
    assert finished == ["urgent"] * 5 + ["fresh"]


def test_a_long_generation_saves_up_no_turns(make):
    """While it runs the other tenant is given much more, which it did not wait for."""
    engine, finished = make(max_running=2), []
    saver = Running(engine, prompt(1, 10), tenant="b").wait()
    for seed in range(15):
        wait([ask(engine, prompt(seed, 100), some(1), [], "", tenant="a")])
    with Held(engine):
        futures = [ask(engine, prompt(100 + n, 20), some(20), finished, "a", tenant="a") for n in range(10)]
        futures += [ask(engine, prompt(200 + n, 20), some(20), finished, "b", tenant="b") for n in range(10)]
    saver.sequence.abort()
    wait(futures)
    assert 3 <= finished[:10].count("a") <= 7


@pytest.mark.whole
def test_many_tenants_that_wait_for_room_do_not_make_a_plan_long(make):
    engine, asked, most = make(kv_tokens=300, max_running=64), [], 0
    rate = engine._core.scheduler.reusable
    engine._core.scheduler.reusable = lambda seq: asked.append(seq) or rate(seq)

    def look() -> None:
        nonlocal most
        most = max(most, len(asked))
        asked.clear()

    engine._core.after_step = look
    with Held(engine):
        futures = [ask(engine, prompt(n, 60), some(8), [], n, tenant=str(n % 8)) for n in range(320)]
    wait(futures)
    assert 8 < most <= 64 + 8 * 8 + 8  # of 320, and not all that have a place


def test_without_room_the_tenant_that_got_most_gives_way(make):
    def places(last: str) -> list[int]:
        engine, finished = make(kv_tokens=260), []
        with Held(engine):
            asked = [
                ask(engine, prompt(n, 20), some(60), finished, n, tenant=last if n == 6 else "a") for n in range(7)
            ]
        assert [result.token_ids for result in wait(asked)] == expected
        assert engine.stats().preemptions > 0
        return finished

    reference = make()
    expected = [run(reference, prompt(n, 20), some(60)) for n in range(7)]
    assert places("a").index(6) >= 5 and places("b").index(6) <= 3


def test_tenants_come_and_go_without_a_trace(make):
    engine = make(max_running=4)
    finished: list[str] = []
    for start in range(0, 120, 40):
        wait([ask(engine, prompt(n, 5), some(2), finished, n, tenant=str(n)) for n in range(start, start + 40)])
    engine.check()
    counters = engine._core.scheduler.counters
    assert not counters.present and len(counters.given) < 60


# short beside long


def test_a_short_request_does_not_wait_for_a_long_prefill(make):
    """Its first token comes after two steps, not after the 25 that the long prompt takes."""
    engine, finished = make(step_tokens=16), []
    with Held(engine):
        long = ask(engine, prompt(1, 400), some(1), finished, "long")
    short = [ask(engine, prompt(2, 12), some(1), finished, "short")]
    wait([long, *short])
    assert finished == ["short", "long"]


def test_a_long_prefill_goes_on_among_many_short_requests(make):
    engine, finished = make(step_tokens=32), []
    with Held(engine):
        futures = [ask(engine, prompt(1, 320), some(1), finished, "long")]
        futures += [ask(engine, prompt(n, 28), some(1), finished, n) for n in range(2, 60)]
    wait(futures)
    assert noted(finished, "long") < 40  # half of every step is its own


def test_the_urgent_do_not_wait_for_what_a_less_urgent_one_computes(make):
    """Among other urgent ones it would not get on."""
    engine, finished, shared = make(step_tokens=16), [], prompt(1, 300)
    with Held(engine):
        low = ask(engine, [*shared, 5], some(1), finished, "low", priority=-1)
    with Held(engine):
        futures = [ask(engine, [*shared, 6], some(1), finished, "shares")]
        futures += [ask(engine, prompt(n, 320), some(1), finished, "other") for n in range(2, 6)]
    wait([low, *futures])
    assert noted(finished, "shares") < 2


def test_two_long_prefills_do_not_halve_each_other(make):
    engine, steps = make(step_tokens=32), {}
    with Held(engine):
        for name in ("first", "second"):
            sequence = engine.open()
            sequence.extend(prompt(len(name), 320))
            future = sequence.generate(some(1))
            future.add_done_callback(lambda _, name=name: steps.setdefault(name, engine._core.stats.steps))
            steps[future] = sequence
    wait([key for key in steps if not isinstance(key, str)])
    assert steps["first"] <= 12 and steps["second"] >= 18


# nobody starves


def test_who_has_nothing_cached_is_not_passed_over_for_ever(make):
    engine, finished = make(max_running=1), []
    shared = prompt(1, 100)
    run(engine, shared, some(1))
    blocker = Running(engine, prompt(2, 10)).wait()
    cold = ask(engine, prompt(3, 50), some(2), finished, "cold")
    left = iter(range(200))

    def another(_=None) -> None:
        if (number := next(left, None)) is not None and not cold.done():
            ask(engine, [*shared, 5 + number], some(2), finished, number).add_done_callback(another)

    engine._core.call(lambda: [another() for _ in range(6)])
    blocker.sequence.abort()
    cold.result(FOREVER)
    assert 10 <= noted(finished, "cold") <= 40


def test_who_needs_much_room_is_not_passed_over_for_ever(make):
    engine, finished = make(kv_tokens=256, max_running=8), []
    left = iter(range(400))
    blocker = Running(engine, prompt(2, 10), some(60)).wait()

    def another(_=None) -> None:
        if (number := next(left, None)) is not None and not large.done():
            ask(engine, prompt(100 + number, 20), some(8), finished, number).add_done_callback(another)

    large = ask(engine, prompt(3, 200), some(20), finished, "large")
    engine._core.call(lambda: [another() for _ in range(8)])
    large.result(FOREVER)
    assert noted(finished, "large") <= 120
    blocker.future.result(FOREVER)


def test_the_queue_ends_for_everybody_when_one_is_aborted_in_the_middle(make):
    engine, finished = make(max_running=1), []
    running = Running(engine, prompt(1, 10), LONG, tenant="a").wait()
    futures = [ask(engine, prompt(n, 10), some(3), finished, n, tenant="ab"[n % 2]) for n in range(10)]
    running.sequence.abort()
    wait(futures)
    engine.check()
    assert sorted(finished) == list(range(10)) and not engine._core.scheduler.counters.present
