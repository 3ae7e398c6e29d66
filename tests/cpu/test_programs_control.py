"""Stopped runs on the engine: their pages come back, and the next program runs as if nothing had been."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

import sgl
from sgl.lang.errors import DeadlineExceeded, ProgramCancelled, ProgramError

LONG = 1500  # tokens: some seconds of work


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(kv_tokens=16384) as made:
        yield made


@pytest.fixture
def idle(engine):
    """The engine; afterwards nothing of what ran holds a page."""
    engine.flush_cache()
    yield engine
    gc.collect()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        engine.flush_cache()
        stats = engine.stats()
        if stats.pages_free == stats.pages_total and not (stats.running or stats.waiting):
            break
        time.sleep(0.02)
    engine.check()
    assert stats.pages_free == stats.pages_total and not (stats.running or stats.waiting)


@sgl.function
def long(s):
    s += "Count: one two three" + sgl.gen("a", max_tokens=LONG, ignore_eos=True, temperature=0)
    s += " and" + sgl.gen("b", max_tokens=LONG, ignore_eos=True, temperature=0)


@sgl.function
def wide(s):
    s += "Count: one two three"
    forks = s.fork(4)
    forks += sgl.gen("x", max_tokens=LONG, ignore_eos=True, temperature=0)
    forks.join()


@sgl.function
def short(s):
    s += "Hello" + sgl.gen("a", max_tokens=4, temperature=0, ignore_eos=True)


def test_a_cancelled_run_frees_its_pages(idle):
    expected = short.run(backend=idle)["a"]
    state = long.run(backend=idle)
    time.sleep(0.2)
    begun = time.monotonic()
    state.cancel()
    with pytest.raises(ProgramCancelled):
        state["a"]
    assert time.monotonic() - begun < 1
    assert short.run(backend=idle)["a"] == expected
    del state


def test_a_deadline_ends_forks(idle):
    with pytest.raises(ProgramError):
        wide.run(backend=idle, timeout=0.3)["x"]
    state = long.run(backend=idle, timeout=0.3)
    assert isinstance(state.error(), DeadlineExceeded)
    del state


def test_an_abandoned_stream_frees_its_pages(idle):
    state = long.run(backend=idle, stream=True)
    for _ in state.text_iter("a"):
        break
    del state


def test_a_cancelled_task_frees_its_pages(idle):
    async def main():
        task = asyncio.create_task(wide.arun(backend=idle))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_gen_out_of_time_fails_with_what_follows(idle):
    @sgl.function
    def program(s):
        s += "Count:" + sgl.gen("a", max_tokens=LONG, ignore_eos=True, timeout=0.2) + sgl.gen("b")

    state = program.run(backend=idle)
    for name in ("a", "b"):
        with pytest.raises(DeadlineExceeded, match="test_programs_control"):
            state[name]
    del state


def test_many_cancelled_at_every_moment(idle):
    """Whatever a run is doing when it is cancelled, nothing is lost."""

    @sgl.function
    def program(s):
        s += "Is it so?" + sgl.select("choice", [" yes", " no", " maybe"])
        forks = s.fork(2)
        forks += sgl.gen("x", max_tokens=20, ignore_eos=True) + sgl.select("y", ["a", "b"])
        s += sgl.gen("z", max_tokens=20, ignore_eos=True)
        forks.join()

    expected = short.run(backend=idle)["a"]
    states = []
    for i in range(40):
        state = program.run(backend=idle, stream=True)
        timer = threading.Timer(0.005 * i, state.cancel)
        timer.start()
        states.append((state, timer))
    for state, timer in states:
        state.error()
        timer.join()
        state.error()
    assert short.run(backend=idle)["a"] == expected
    del states, state, timer


def test_reasoning_is_cut_out_of_the_tokens(idle):
    """What follows the answer continues the text without the thought, token for token."""

    @sgl.function
    def program(s):
        s += "Say: " + sgl.separate_reasoning(
            sgl.gen("a", regex="<think>[a-z]{3,6}</think> [a-z]{3,6}", max_tokens=40, temperature=0), "qwen3"
        )
        s += ". " + sgl.gen("b", max_tokens=8, temperature=0)

    @sgl.function
    def plain(s, text):
        s += text + sgl.gen("b", max_tokens=8, temperature=0)

    state = program.run(backend=idle)
    text = state.text()
    assert "think" not in text and state["a_reasoning_content"] and state["a"] in text
    again = plain.run(text.removesuffix(state["b"]), backend=idle)
    assert again["b"] == state["b"]


def test_a_select_can_be_drawn(idle):
    @sgl.function
    def program(s):
        s += "The answer is" + sgl.select("x", [" yes", " no", " perhaps"], temperature=1.0)

    drawn = [program.run(backend=idle, seed=seed)["x"] for seed in range(40)]
    assert drawn == [program.run(backend=idle, seed=seed)["x"] for seed in range(40)]
    probabilities = program.run(backend=idle).get_meta_info("x")["choice_probs"]
    assert len(set(drawn)) == sum(p > 0.1 for p in probabilities) or len(set(drawn)) > 1
    assert abs(sum(probabilities) - 1) < 1e-6
