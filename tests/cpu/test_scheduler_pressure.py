"""Deadlines, pins, namespaces, tenants and priorities, one at a time; every invariant is checked after every step."""

from __future__ import annotations

import gc
import threading
import time

import pytest
from test_engine import prompt

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, DeadlineExceeded, EngineClosed, OutOfPages

LONG = SamplingParams(max_tokens=2000, temperature=0, ignore_eos=True)
FOREVER = 30  # seconds


def some(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)


@pytest.fixture
def make(tiny, request):
    made: list[Engine] = []

    def open_one(**options):
        chosen = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "poison_freed": True, "device": "cpu"} | options
        engine = Engine(tiny, **chosen)
        engine._core.after_step = engine._core.check
        made.append(engine)
        return engine

    yield open_one
    for engine in made:
        engine.close()


class Held:
    """The scheduler thread stands still while operations are queued, so that all of them arrive together."""

    def __init__(self, engine: Engine) -> None:
        self._gate = threading.Event()
        self._thread = threading.Thread(target=lambda: engine._core.call(lambda: self._gate.wait(FOREVER)))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._gate.set()
        self._thread.join(FOREVER)


class Running:
    """A generation whose first token has come."""

    def __init__(self, engine: Engine, tokens, params=LONG, **terms) -> None:
        self.sequence, self.began = engine.open(**terms), threading.Event()
        self.sequence.extend(tokens)
        self.future = self.sequence.generate(params, on_chunk=lambda chunk: self.began.set())

    def wait(self):
        """Until it has begun; its text may be nothing but halves of characters for a while."""
        assert self.began.wait(FOREVER)
        return self


# deadlines


def test_what_runs_ends_at_its_deadline_and_the_rest_goes_on(make):
    engine = make()
    engine._core.after_step = lambda: time.sleep(0.002)  # what is asked for takes a second
    beside = Running(engine, prompt(1, 10), some(300)).wait()
    hurried = engine.open(timeout=0.3)
    hurried.extend(prompt(2, 10))
    first, queued = hurried.generate(LONG), hurried.generate(LONG)
    for future in (first, queued):
        with pytest.raises(DeadlineExceeded, match=r"deadline passed \d+\.\d+ s ago.*longer timeout"):
            future.result(FOREVER)
    assert beside.future.result(FOREVER).completion_tokens == 300
    assert engine.stats().timeouts == 1


def test_what_waits_ends_at_its_deadline(make):
    engine = make(max_running=1)
    engine._core.after_step = lambda: time.sleep(0.002)
    blocker = Running(engine, prompt(1, 10)).wait()
    waiting = engine.open(timeout=0.3)
    waiting.extend(prompt(2, 10))
    with pytest.raises(DeadlineExceeded, match="waiting"):
        waiting.generate(some(4)).result(FOREVER)
    assert not blocker.future.done()
    blocker.sequence.abort()


def test_after_the_deadline_new_operations_fail_at_once_and_closing_works(make):
    engine = make()
    sequence = engine.open(timeout=0.02)
    sequence.extend(prompt(1, 20))
    time.sleep(0.03)
    for ask in (sequence.prefill, lambda: sequence.generate(some(3)), lambda: sequence.score([[4], [5]])):
        with pytest.raises(DeadlineExceeded):
            ask().result(FOREVER)
    sequence.close()
    engine.check()
    assert not engine._core.life.live and not engine._core.life.deadlines._watched


def test_forks_inherit_the_deadline_also_those_that_are_not_born(make):
    engine = make(max_running=1)
    blocker = Running(engine, prompt(1, 10)).wait()
    parent = engine.open(timeout=0.05, tenant="a", namespace="n", priority=-1)
    parent.extend(prompt(2, 10))
    children = parent.fork(2)
    assert children[0]._state.terms is parent._state.terms
    for child in children:
        with pytest.raises(DeadlineExceeded):
            child.generate(some(3)).result(FOREVER)
    blocker.sequence.abort()


def test_a_deadline_that_passes_just_before_the_choices_are_computed(make):
    engine = make()
    forward = engine._core.runner.forward

    def slow(work):
        if work:
            time.sleep(0.3)
        return forward(work)

    engine._core.runner.forward = slow
    sequence = engine.open(timeout=0.2)
    sequence.extend(prompt(1, 20))
    with pytest.raises(DeadlineExceeded):
        sequence.score([prompt(2, 3), prompt(3, 3)]).result(FOREVER)
    sequence.close()
    engine._core.runner.forward = forward
    assert len(Running(engine, prompt(4, 10), some(5)).future.result(FOREVER).token_ids) == 5
    engine.check()
    assert not engine._core.life.live


def test_a_sleeping_engine_keeps_deadlines(make):
    engine = make()
    engine.sleep()
    sequence = engine.open(timeout=0.05)
    sequence.extend(prompt(1, 10))
    with pytest.raises(DeadlineExceeded):
        sequence.generate(some(4)).result(FOREVER)
    engine.wake()
    assert engine.generate("hello", some(2)).completion_tokens == 2


def test_an_idle_engine_wakes_up_for_no_deadline_that_is_met(make):
    engine = make()
    for _ in range(200):
        sequence = engine.open(timeout=1000)
        sequence.extend(prompt(1, 5))
        sequence.generate(some(1)).result(FOREVER)
        sequence.close()
    engine.check()
    deadlines = engine._core.life.deadlines
    assert not deadlines._watched and len(deadlines._heap) <= 65 and deadlines.left() is None


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True])
def test_timeouts_that_are_none(make, timeout):
    with pytest.raises(ConfigError, match="timeout="):
        make().open(timeout=timeout)


def test_the_longest_timeout_is_no_overflow(make):
    engine = make()
    sequence = engine.open(timeout=1e300)
    sequence.extend(prompt(1, 5))
    assert sequence.generate(some(2)).result(FOREVER).completion_tokens == 2
    time.sleep(0.01)
    assert sequence.generate(some(2)).result(FOREVER).completion_tokens == 2


# namespaces


@pytest.mark.parametrize("page_size", [1, 4])
def test_nothing_is_matched_across_namespaces(make, page_size):
    engine = make(page_size=page_size)
    tokens = prompt(1, 100)

    def cached(namespace: str) -> int:
        sequence = engine.open(namespace=namespace)
        sequence.extend(tokens)
        return sequence.generate(some(3)).result(FOREVER).cached_tokens

    assert [cached("a"), cached("b"), cached("")] == [0, 0, 0]
    assert all(cached(name) >= 96 for name in ("a", "b", ""))


def test_nobody_waits_for_a_prefill_of_another_namespace(make):
    engine = make(step_tokens=16)
    with Held(engine):
        sequences = [engine.open(namespace=name) for name in ("a", "a", "b")]
        for sequence in sequences:
            sequence.extend(prompt(1, 100))
        futures = [sequence.generate(some(2)) for sequence in sequences]
    results = [future.result(FOREVER) for future in futures]
    assert [result.cached_tokens for result in results] == [0, 99, 0]
    assert len({tuple(result.token_ids) for result in results}) == 1


# pins


def test_a_pinned_prefix_stays_under_pressure_and_is_let_go(make):
    engine = make(kv_tokens=400)
    tokens = prompt(1, 100)

    def cached() -> int:
        sequence = engine.open()
        sequence.extend([*tokens, 9])
        return sequence.generate(some(2)).result(FOREVER).cached_tokens

    with engine.pin(tokens) as pin:
        assert pin.tokens == 100 and engine.stats().pages_pinned == 100
        for seed in range(2, 8):
            engine.open().extend(prompt(seed, 5))
            _fill(engine, prompt(seed, 280))
        engine.flush_cache()
        assert cached() == 100
    engine.flush_cache()
    assert cached() == 0 and engine.stats().pages_pinned == 0


def _fill(engine: Engine, tokens) -> None:
    sequence = engine.open()
    sequence.extend(tokens)
    sequence.generate(some(2)).result(FOREVER)
    sequence.close()


def test_a_dropped_pin_is_released(make):
    engine = make()
    pin = engine.pin("a text that is long enough to be worth it")
    assert engine.stats().pages_pinned == pin.tokens > 10
    del pin
    gc.collect()
    engine.check()
    assert engine.stats().pages_pinned == 0


@pytest.mark.parametrize("page_size", [1, 8])
def test_pins_that_overlap_count_once_and_half_of_the_pool_is_the_most(make, page_size):
    engine = make(kv_tokens=256, page_size=page_size)
    tokens = prompt(1, 120)
    pins = [engine.pin(tokens[:64]), engine.pin(tokens), engine.pin(tokens, namespace="")]
    assert engine.stats().pages_pinned * page_size == 120
    with pytest.raises(OutOfPages, match="more than half"):
        engine.pin(prompt(2, 16))
    with pytest.raises(OutOfPages, match="more than half"):
        engine.pin(prompt(2, 200))
    with pytest.raises(OutOfPages, match="more than half"):
        engine.pin(tokens, namespace="other")
    for pin in pins:
        pin.release()
        pin.release()
    assert engine.pin(prompt(2, 16)).tokens == 16
    with pytest.raises(ConfigError, match="fill no page"):
        engine.pin([])


def test_a_pin_behind_a_sleep_finds_those_counted_that_are_not_computed_again_yet(make):
    engine, refused = make(kv_tokens=256), []
    pins = [engine.pin(prompt(1, 60)), engine.pin(prompt(1, 60)[:40] + prompt(3, 20))]
    engine.sleep()

    def pin() -> None:
        try:
            pins.append(engine.pin(prompt(2, 70)))
        except OutOfPages as error:
            refused.append(str(error))

    thread = threading.Thread(target=pin)
    thread.start()
    while len(engine._core.life.live) < 3:
        time.sleep(0.001)
    engine.wake()
    thread.join(FOREVER)
    assert len(refused) == 1 and "150 of the 256 pages" in refused[0]
    assert engine.pin(prompt(1, 60)[:20] + prompt(2, 40)).tokens == 60


def test_a_refused_pin_holds_nothing(make):
    engine = make(kv_tokens=64)
    gc.disable()
    try:
        with pytest.raises(OutOfPages):
            engine.pin(prompt(1, 30)), engine.pin(prompt(2, 30))
        engine.check()
        assert len(engine._core.life.live) <= 1 and engine.stats().pages_pinned <= 30
        with pytest.raises(OutOfPages) as caught:
            engine.pin(prompt(3, 60))
        engine.check()
        assert all(len(seq) != 60 for seq in engine._core.life.live) and caught
    finally:
        gc.enable()


def test_a_request_that_pins_leave_no_room_for_is_told_so(make):
    engine = make(kv_tokens=200)
    pin = engine.pin(prompt(1, 100))
    sequence = engine.open()
    sequence.extend(prompt(2, 150))
    with pytest.raises(OutOfPages, match="of which 100 are pinned"):
        sequence.generate(some(3)).result(FOREVER)
    pin.release()
    assert sequence.generate(some(3)).result(FOREVER).completion_tokens == 3


def test_a_pin_outlives_a_sleep(make):
    engine = make()
    tokens = prompt(1, 100)
    pin = engine.pin(tokens)
    engine.sleep()
    engine.wake()
    sequence = engine.open()
    sequence.extend([*tokens, 9])
    assert sequence.generate(some(2)).result(FOREVER).cached_tokens == 100
    assert engine.stats().pages_pinned == 100
    pin.release()


def test_pins_of_a_closed_engine(make):
    engine = make()
    pin = engine.pin(prompt(1, 50))
    engine.close()
    pin.release()
    with pytest.raises(EngineClosed):
        engine.pin(prompt(1, 50))
