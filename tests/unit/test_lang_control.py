"""Runs that are stopped: cancelled, out of time, over budget, abandoned. Nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time

import pytest
from alone import alone
from lang_rules import RuleBackend

import sgl
from sgl.lang.concurrency.timeout_alarms import TimeoutThread
from sgl.lang.errors import (
    BadValueError,
    BudgetExceeded,
    DeadlineExceeded,
    ProgramCancelled,
    ProgramError,
    StateEndedError,
    WouldBlockError,
)
from sgl.lang.interpreter.token_usage import Budget, Usage


@sgl.function
def two(s):
    s += "one " + sgl.gen("a") + " two " + sgl.gen("b")


@sgl.function
def reads(s):
    s += "one " + sgl.gen("a")
    s += " got " + s["a"] + sgl.gen("b")


@sgl.function
def tree(s):
    s += "root "
    forks = s.fork(2)
    forks += lambda i: f"{i} " + sgl.gen("x")
    forks.join()
    s += sgl.gen("end")


def fails_soon(call, error, seconds=5.0):
    """`call` raises `error` long before a hang would be noticed."""
    begun = time.monotonic()
    with pytest.raises(error) as caught:
        call()
    assert time.monotonic() - begun < seconds
    return caught.value


def test_a_cancelled_run_gives_everything_up(stuck):
    state = two.run(backend=stuck)
    state.cancel("enough")
    assert isinstance(state.error(), ProgramCancelled) and "enough" in str(state.error())
    assert state.text() == "one "
    assert "enough" in str(fails_soon(lambda: state["b"], ProgramCancelled))
    stuck.gate.set()
    stuck.worker.submit(int).result()
    assert state.text() == "one " and stuck.open_streams == 0, "what comes late changes nothing"


def test_the_reader_of_a_cancelled_run_is_woken(stuck):
    state = two.run(backend=stuck)
    threading.Timer(0.1, state.cancel).start()
    fails_soon(lambda: state["a"], ProgramCancelled)
    streaming = two.run(backend=stuck, stream=True)
    threading.Timer(0.1, streaming.cancel).start()
    fails_soon(lambda: list(streaming.text_iter()), ProgramCancelled)


def test_the_body_of_a_cancelled_run_ends_at_its_next_line(stuck):
    ended = threading.Event()

    @sgl.function
    def endless(s):
        try:
            while True:
                s += sgl.gen("x")
                time.sleep(0.01)
        finally:
            ended.set()

    state = endless.run(backend=stuck, stream=True)
    time.sleep(0.05)
    state.cancel()
    assert ended.wait(5)
    assert isinstance(state.error(), ProgramCancelled)


def test_cancelling_a_fork_leaves_the_others_alone(stuck):
    @sgl.function
    def program(s):
        s += "root "
        forks = s.fork(2)
        forks += sgl.gen("x")
        grandchild = forks[0].fork(1)
        grandchild += sgl.gen("y")
        forks[0].cancel("not this one")
        stuck.gate.set()
        errors = [fork.error() for fork in forks] + [grandchild[0].error()]
        s += sgl.gen("end")
        return errors

    state = program.run(backend=stuck)
    first, second, third = state.ret_value
    assert isinstance(first, ProgramCancelled) and isinstance(third, ProgramCancelled) and second is None
    assert state["end"] == "<1>"


def test_a_run_has_a_deadline(stuck):
    error = fails_soon(lambda: reads.run(backend=stuck, timeout=0.1), DeadlineExceeded)
    assert "0.1 s" in str(error) and isinstance(error, TimeoutError)
    state = two.run(backend=stuck, timeout=0.1)
    assert isinstance(state.error(), DeadlineExceeded)
    stuck.gate.set()
    assert two.run(backend=stuck, timeout=30)["b"] == "<3>"


def test_the_deadline_reaches_forks_and_nested_programs(stuck):
    fails_soon(lambda: tree.run(backend=stuck, timeout=0.1), ProgramError)

    @sgl.function
    def outer(s):
        inner = two.run(backend=stuck)
        s += "inner said " + inner["b"]

    error = fails_soon(lambda: outer.run(backend=stuck, timeout=0.1), DeadlineExceeded)
    assert "timeout" in str(error)


def test_a_gen_has_a_timeout(stuck):
    @sgl.function
    def program(s):
        s += "q " + sgl.gen("a", timeout=0.1)
        s += sgl.gen("b")

    state = program.run(backend=stuck)
    error = fails_soon(lambda: state["a"], DeadlineExceeded)
    assert "test_lang_control.py" in str(error) and "Gen('a')" in str(error)
    assert isinstance(state.error(), DeadlineExceeded)
    fails_soon(lambda: state["b"], ProgramError)
    with pytest.raises(BadValueError, match="-1"):
        sgl.gen("a", timeout=-1)
    with pytest.raises(BadValueError, match="nan"):
        sgl.gen("a", timeout=math.nan)


def test_a_timeout_that_no_clock_reaches_leaves_the_thread_of_the_others(stuck):
    endless = two.run(backend=stuck, timeout=math.inf)
    fails_soon(lambda: two.run(backend=stuck, timeout=0.1)["b"], ProgramError)
    endless.cancel()


def test_a_state_goes_on_in_a_number_of_forks(backend):
    @sgl.function
    def program(s, size):
        return len(s.fork(size))

    assert program.run(0, backend=backend).ret_value == 0
    for size in (-1, 2.5):
        with pytest.raises(BadValueError, match=str(size)):
            program.run(size, backend=backend)


def test_each_item_of_a_batch_has_its_own_deadline(backend):
    slow = threading.Event()

    @sgl.function
    def program(s, i):
        if i == 1:
            slow.wait(0.3)
        s += f"{i} " + sgl.gen("a")

    results = program.run_batch([{"i": i} for i in range(3)], backend=backend, timeout=0.15, return_exceptions=True)
    assert isinstance(results[1], DeadlineExceeded)
    assert [results[0]["a"], results[2]["a"]] == ["<1>", "<1>"]


def test_a_budget_stops_a_run(backend):
    @sgl.function
    def program(s):
        for i in range(1000):
            s += "word " + sgl.gen(f"x{i}")
            s[f"x{i}"]

    error = fails_soon(lambda: program.run(backend=backend, budget=Budget(operations=5)), BudgetExceeded)
    assert "used 6 operations, its budget is 5" in str(error) and "test_lang_control.py" in str(error)
    fails_soon(lambda: program.run(backend=backend, budget=Budget(generated_tokens=3)), BudgetExceeded)
    fails_soon(lambda: program.run(backend=backend, budget=30), BudgetExceeded)
    assert len(backend.requests) < 30
    for wrong in (-1, True, "2"):
        with pytest.raises(BadValueError):
            Budget(tokens=wrong)
    with pytest.raises(BadValueError, match="budget"):
        two.run(backend=backend, budget="many")


def test_nested_programs_count_for_the_budget(backend):
    @sgl.function
    def outer(s):
        for _ in range(100):
            two.run(backend=backend).sync()
            s += "."

    fails_soon(lambda: outer.run(backend=backend, budget=Budget(operations=3)), BudgetExceeded)
    assert len(backend.requests) <= 6


def test_usage_adds_up(backend):
    state = tree.run(backend=backend)
    state.sync()
    usage = state.usage()
    assert usage.operations == 3 == state.stream_executor.control.usage.operations
    assert usage.generated_tokens == 3 and usage.prompt_tokens > 0 and usage.seconds > 0
    assert Usage.total([usage, usage]).generated_tokens == 6 and "3 operations" in str(usage)
    assert two.run(backend=backend).usage().operations == 2


def test_usage_says_what_a_backend_did_not_tell():
    plain = Usage.of({"prompt_tokens": 9, "completion_tokens": 4}, 1.0)
    ours = Usage.of({"prompt_tokens": 9, "cached_tokens": 8, "completion_tokens": 4, "forced_tokens": 3}, 1.0)
    assert plain.unknown == {"cached_tokens", "forced_tokens"} and not ours.unknown
    assert "9 prompt tokens (cached unknown), 4 generated (forced unknown)" in str(plain)
    assert "9 prompt tokens (8 cached, 1 computed), 4 generated (3 forced)" in str(ours)
    assert "18 prompt tokens (at least 8 cached), 8 generated (at least 3 forced)" in str(plain + ours)
    select = Usage.of({"prompt_tokens": 9, "cached_tokens": 0}, 1.0)
    assert not select.unknown and "0 generated (0 forced)" in str(select)


def test_usage_tells_wall_clock_waiting_and_computing():
    told = {"prompt_tokens": 9, "cached_tokens": 0, "e2e_latency": 3.0, "queue_seconds": 1.0}
    one, other = Usage.of(told, 4.0, 10.0), Usage.of(told, 4.0, 11.0)  # from 6 to 10 and from 7 to 11
    both = one + other
    assert (both.wall_seconds, both.seconds, both.computing_seconds, both.waiting_seconds) == (5.0, 8.0, 4.0, 4.0)
    assert str(both).endswith("5.00 s wall clock, per operation 2.00 s waiting and 2.00 s computing")
    silent = both + Usage.of({"prompt_tokens": 9}, 1.0, 12.0)
    assert silent.computing_seconds is silent.waiting_seconds is None and str(silent).endswith("6.00 s wall clock")
    assert Usage().wall_seconds == 0.0 and Usage.total([one, other]) == other + one


def test_an_abandoned_stream_is_cancelled(backend):
    going = threading.Event()
    ended = threading.Event()

    @sgl.function
    def endless(s):
        try:
            while True:
                s += "word " + sgl.gen("x")
                s["x"]
                going.set()
        finally:
            ended.set()

    state = endless.run(backend=backend, stream=True)
    for _ in state.text_iter():
        if going.is_set():
            break
    assert not ended.wait(0.1), "as long as somebody holds the state, it goes on"
    del state
    gc.collect()
    assert ended.wait(5)


def test_an_iterator_left_early_can_be_taken_up_again(backend):
    state = two.run(backend=backend, stream=True)
    for _ in state.text_iter():
        break
    assert "".join(state.text_iter()) == state.text() == "one <1> two <3>"


def test_a_cancelled_task_cancels_its_run(stuck):
    @sgl.function
    async def program(s):
        s += "q " + sgl.gen("a")
        return await s.get("a")

    async def main(program):
        task = asyncio.create_task(program.arun(backend=stuck))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for chosen in (program, reads):
        asyncio.run(asyncio.wait_for(main(chosen), 5))
    stuck.gate.set()
    stuck.worker.submit(int).result()
    deadline = time.monotonic() + 5
    while stuck.open_streams and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stuck.open_streams == 0 and not stuck.requests


def test_async_programs_await_what_waits(backend):
    @sgl.function
    async def inner(s, word):
        s += word + " " + sgl.gen("said")
        return await s.get("said")

    @sgl.function
    async def program(s):
        s += "q " + sgl.gen("a")
        with pytest.raises(WouldBlockError, match=r"await s\.get"):
            backend.gate.clear()
            s += sgl.gen("late")
            s["late"]
        backend.gate.set()
        called = await s.call(inner, "then")
        forks = s.fork(2)
        forks += lambda i: f" {i} " + sgl.gen("x")
        await forks.join()
        async with s.copy() as side:
            side += sgl.gen("aside")
        parts = [part async for part in s.text_iter("a")]
        assert called.ret_value == await called.get("said") and "said" not in s
        assert (await s.error()) is None and (await s.usage()).operations == 6
        assert await s.get("aside") == ["<3>"]
        return [await s.get("a"), await s.get("x"), "".join(parts), s["a"], await s.text()]

    async def main():
        return await program.arun(backend=backend)

    state = asyncio.run(main())
    assert state.ret_value == ["<1>", ["<4>", "<4>"], "<1>", "<1>", "q <1><2>then <2>"]
    assert state.text() == state.ret_value[-1]
    assert program.run(backend=backend).ret_value == state.ret_value, "run() of async programs, without a loop"

    async def inside_a_loop():
        return program.run(backend=backend).ret_value

    assert asyncio.run(inside_a_loop()) == state.ret_value, "and in a notebook, where a loop is running"


@pytest.mark.whole
@alone
def test_a_thousand_async_programs(backend):
    @sgl.function
    async def program(s, i):
        s += f"{i} " + sgl.gen("a")
        s += " " + await s.get("a") + " " + sgl.gen("b")

    async def main():
        return await program.arun_batch([{"i": i} for i in range(1000)], backend=backend)

    before = threading.active_count()
    states = asyncio.run(main())
    assert [state["b"] for state in states] == ["<3>"] * 1000
    assert threading.active_count() <= before + 2


def test_arun_streams(backend):
    async def main():
        state = await two.arun(backend=backend, stream=True)
        return [part async for part in state.text_async_iter()]

    assert "".join(asyncio.run(main())) == "one <1> two <3>"


def test_called_programs_share_the_text_not_the_variables(backend):
    @sgl.function
    def ask(s, question):
        s += f"{question} " + sgl.gen("answer")
        return s["answer"] + "!"

    @sgl.function
    def program(s):
        s += "start " + sgl.gen("answer")
        first = s.call(ask, "one?")
        second = s.call(ask, question=" two?")
        assert first["answer"] != s["answer"] and "answer" in s
        forks = second.fork(1)
        forks += sgl.gen("more")
        forks.join()
        return [s["answer"], first["answer"], second.ret_value, second["more"], "more" in s]

    state = program.run(backend=backend)
    assert state.text() == "start <1>one? <2> two? <4>"
    assert state.ret_value == ["<1>", "<2>", "<4>!", ["<5>"], False]
    with pytest.raises(KeyError):
        state["more"]


def test_reasoning_is_separated():
    backend = RuleBackend(lambda prompt, request: f"<think>after {len(prompt)}</think>\n answer {len(prompt)}")

    @sgl.function
    def program(s):
        s += sgl.user("hi")
        s += sgl.separate_reasoning(sgl.assistant("well: " + sgl.gen("a") + " and " + sgl.gen("b")), model_type="qwen3")
        s += "end " + sgl.separate_reasoning(sgl.gen("c"), "qwen3")

    state = program.run(backend=backend)
    text = "USER:hi\nASSISTANT:well: "
    first = f"answer {len(text)}"
    second = f"answer {len(text + first + ' and ')}"
    assert state.messages()[1] == {"role": "assistant", "content": f"well: {first} and {second}"}
    assert state["a"] == first and state["a_reasoning_content"] == f"after {len(text)}"
    assert state["b"] == second and state["b_reasoning_content"].startswith("after ")
    assert state.text() == f"{text}{first} and {second}\nend {state['c']}"
    with pytest.raises(ProgramError, match="nonsense"):
        program_with("nonsense").run(backend=backend)
    with pytest.raises(ValueError, match="name must be provided"):
        sgl.separate_reasoning(sgl.gen(), "qwen3")


def program_with(model_type):
    @sgl.function
    def program(s):
        s += sgl.separate_reasoning(sgl.gen("a"), model_type)

    return program


def test_pictures_need_a_backend_that_takes_them(backend):
    @sgl.function
    def program(s):
        s += sgl.user(sgl.image(b"\x89PNG\r\n\x1a\n") + "what is it?")

    error = fails_soon(lambda: program.run(backend=backend), ProgramError)
    assert "image" in str(error) and "test_lang_control.py" in str(error)


def test_nothing_can_be_appended_to_an_ended_state(backend):
    state = two.run(backend=backend)
    with pytest.raises(StateEndedError):
        state += "more"
    assert state.text() == "one <1> two <3>"


def test_deadlines_ring_in_order_and_their_thread_ends():
    deadlines, rung = TimeoutThread(), []
    done = threading.Event()
    deadlines.after(0.15, lambda: (rung.append(3), done.set()))
    deadlines.after(0.05, lambda: rung.append(1))
    silent = deadlines.after(0.1, lambda: rung.append(2))
    deadlines.cancel(silent)
    assert done.wait(5) and rung == [1, 3]
    deadlines.cancel(deadlines.after(60, int))
    until = time.monotonic() + 5
    while deadlines._running and time.monotonic() < until:
        time.sleep(0.01)
    assert not deadlines._running
