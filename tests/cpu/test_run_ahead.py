"""A step in flight while its sequences are cut, preempted, failed or put to sleep; nothing may show that it was."""

from __future__ import annotations

import gc
import random
import threading
import weakref

import pytest
import torch
from test_engine import GREEDY, prompt, run

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import RequestAborted, RuntimeFailure
from sgl.runtime.executor import weight_offload
from sgl.runtime.loop import step_execution as steps
from sgl.runtime.loop.scheduler_call import SchedulerCall

pytestmark = pytest.mark.stepping


class Hold:
    """The scheduler thread stands still, so that several operations arrive together."""

    def __init__(self, engine: Engine) -> None:
        self._gate = threading.Event()
        self._thread = threading.Thread(target=lambda: engine._core.call(lambda: self._gate.wait(60)))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._gate.set()
        self._thread.join(60)


# the page of a token that turns out to be the last


def test_a_pool_without_room_for_the_token_after_the_last(open_engine):
    tokens = prompt(5, 20)
    expected = run(open_engine(), tokens)
    first_time = next(i for i, token in enumerate(expected) if token not in expected[:i] and i > 3)
    params = SamplingParams(max_tokens=50, temperature=0, stop_token_ids=(expected[first_time],))
    engine = open_engine(kv_tokens=20 + first_time)
    assert run(engine, tokens, params) == expected[:first_time]


# sleep forgets every prefix


@pytest.mark.parametrize("page_size", [1, 4])
def test_no_prefix_survives_a_sleep(open_engine, page_size):
    engine = open_engine(page_size=page_size)
    sequence = engine.open()
    sequence.extend(prompt(3, 40))
    sequence.prefill().result(30)
    expected = sequence.logprobs(1).result(30)
    core = engine._core
    with Hold(engine):
        found = sequence.logprobs(1)  # from the first token on: it holds no page while it waits
        slept = core.submit(core.life.new_state(), SchedulerCall(engine._core.sleeper.sleep))
    slept.result(30)
    assert engine.asleep and not engine._core.cache.tree.roots
    engine.wake()
    assert [logprob for logprob, _ in found.result(30)[0]] == pytest.approx([logprob for logprob, _ in expected[0]])


def test_who_holds_no_page_keeps_no_page_from_others(open_engine):
    engine = open_engine(kv_tokens=64)
    sequence = engine.open()
    sequence.extend(prompt(3, 60))
    sequence.prefill().result(30)
    sequence.extend([5], drop=60)
    assert len(sequence.tokens()) == 1
    assert len(run(engine, prompt(4, 50))) == 12  # needs the pages of the dropped prefix


# errors of a step in flight


class Broken:
    """Raises at the n-th call, when called, or when its result is read."""

    def __init__(self, function, at: int, late: bool) -> None:
        self.function, self.at, self.late = function, at, late

    def __call__(self, *args):
        self.at -= 1
        if self.at == 0 and not self.late:
            raise RuntimeError("no luck")
        ready = self.function(*args)
        return self.fail if self.at == 0 else ready

    def fail(self):
        raise RuntimeError("no luck")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", [1, 3])
def test_failed_sampling_fails_its_requests_only(open_engine, late, at):
    engine = open_engine()
    expected = run(engine, prompt(1, 10))
    sampler = engine._core.stepper.sampler
    sampler.launch = Broken(sampler.launch, at, late)
    with pytest.raises(RuntimeFailure, match=r"sampling failed.*no luck"):
        run(engine, prompt(1, 10))
    assert run(engine, prompt(1, 10)) == expected


@pytest.mark.parametrize("late", [False, True])
def test_failed_scoring_fails_its_requests_only(open_engine, monkeypatch, late):
    engine = open_engine()
    expected = run(engine, prompt(1, 10))
    monkeypatch.setattr(steps, "launch_top_logprobs", Broken(steps.launch_top_logprobs, 1, late))
    sequence = engine.open()
    sequence.extend(prompt(2, 10))
    with Hold(engine):
        scored = sequence.logprobs(1)
        other = engine.open()
        other.extend(prompt(1, 10))
        generated = other.generate(GREEDY)
    with pytest.raises(RuntimeFailure, match=r"scoring failed.*no luck"):
        scored.result(30)
    assert generated.result(30).token_ids == expected
    assert len(sequence.logprobs(1).result(30)[0]) == 9


def test_a_failing_step_spares_who_only_waits_for_the_last_token(open_engine):
    engine = open_engine()
    expected = run(engine, prompt(1, 10))
    forward = engine._core.runner.forward

    def fail_without_first(work):
        if work and all(seq is not first._state for seq, *_ in work):
            raise RuntimeError("no luck")
        return forward(work)

    first, second = engine.open(), engine.open()
    engine._core.runner.forward = fail_without_first
    with Hold(engine):
        first.extend(prompt(1, 10))
        done = first.generate(GREEDY)
        second.extend(prompt(2, 10))
        failed = second.generate(SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    assert done.result(30).token_ids == expected
    with pytest.raises(RuntimeFailure, match="no luck"):
        failed.result(30)


# aborted with a token in flight, and asked again at once


def test_an_abort_and_a_new_request_within_a_step(open_engine):
    engine = open_engine()
    long = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    for seed in range(8):
        sequence, seen = engine.open(), threading.Event()
        sequence.extend(prompt(seed, 10))
        old = sequence.generate(long, on_chunk=lambda chunk, seen=seen: seen.set())
        seen.wait(30)
        with Hold(engine):
            sequence.abort()
            new = sequence.generate(GREEDY)
        with pytest.raises(RequestAborted):
            old.result(30)
        tokens = sequence.tokens().tolist()
        assert run(engine, tokens[:-12]) == tokens[-12:] == new.result(30).token_ids


def test_forced_preemption_with_tokens_in_flight(open_engine):
    engine = open_engine(step_tokens=16)
    prompts = [prompt(seed, 20) for seed in range(4)]
    params = SamplingParams(max_tokens=40, temperature=1, seed=3, frequency_penalty=0.5, logprobs=True)
    expected = [run(engine, tokens, params) for tokens in prompts]
    scheduler, rng = engine._core.scheduler, random.Random(1)
    plan = scheduler.plan

    def preempting():
        for seq in list(scheduler.running):
            if rng.random() < 0.2:
                scheduler.preempt(seq)
        return plan()

    scheduler.plan = preempting
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    futures = [sequence.generate(params) for sequence in sequences]
    assert [future.result(60).token_ids for future in futures] == expected
    assert engine.stats().preemptions > 4


# what stays behind


def test_an_error_keeps_no_handle_alive(open_engine):
    engine = open_engine()

    def caller() -> weakref.ref:
        sequence = engine.open()
        sequence.extend(prompt(1, 10))
        with Hold(engine):
            future = sequence.generate(GREEDY)
            children = sequence.fork(2)
            sequence.abort()
        for waiting in (future, children[0].generate(GREEDY), children[1].prefill()):
            with pytest.raises(RequestAborted):
                waiting.result(30)
        return weakref.ref(sequence)

    handle = caller()
    gc.collect()
    engine.check()
    assert handle() is None and not engine._core.life.live


# sleep and wake that fail


def test_a_sleep_without_main_memory_changes_nothing(open_engine, monkeypatch):
    engine = open_engine()
    expected = run(engine, prompt(1, 10))

    def full(tensors):
        raise MemoryError("no main memory")

    monkeypatch.setattr("sgl.runtime.loop.engine_sleep.OffloadedWeights", full)
    with pytest.raises(MemoryError):
        engine.sleep()
    assert not engine.asleep and run(engine, prompt(1, 10)) == expected


def test_a_wake_without_room_holds_nothing_and_can_be_tried_again(open_engine, monkeypatch):
    engine = open_engine()
    expected = run(engine, prompt(1, 10))
    engine.sleep()
    make, held = engine._core.sleeper._make_attention, []

    def no_room():
        held.append(engine._core.sleeper._pool.bytes)
        raise torch.OutOfMemoryError("full")

    engine._core.sleeper._make_attention = no_room
    with pytest.raises(RuntimeFailure, match="wake again"):
        engine.wake()
    assert engine.asleep and held[0] > 0 and engine._core.sleeper._pool.bytes == 0
    engine._core.sleeper._make_attention = make
    engine.wake()
    assert run(engine, prompt(1, 10)) == expected


def test_a_host_copy_that_failed_half_way_gives_all_back():
    tensor = torch.arange(64)
    kept = weight_offload.OffloadedWeights([tensor])
    kept.restore()
    kept.release()
    assert tensor.untyped_storage().nbytes() == 0
    kept.restore()
    assert tensor.tolist() == list(range(64))
