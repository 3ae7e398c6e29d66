"""What happens at the same moment, or in an order that is rare: the right error, the right value, and nobody waits."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
import time

import pytest
from lang_rules import RuleBackend, RuleStream
from test_lang_hangs import ends

import sgl
from sgl.lang.backend import Generated
from sgl.lang.concurrency.replay_feed import ReplayFeed
from sgl.lang.concurrency.timeout_alarms import TimeoutThread
from sgl.lang.errors import BudgetExceeded, DeadlineExceeded, ProgramCancelled, ProgramError
from sgl.lang.places.source_location import SourceLocation


class Instrument(RuleBackend):
    """Remembers its streams; `kind` makes them."""

    kind: type[RuleStream] = RuleStream

    def __init__(self, **options):
        super().__init__(**options)
        self.streams: list[RuleStream] = []

    def open(self):
        self.open_streams += 1
        self.streams.append(self.kind(self))
        return self.streams[-1]


def eventually(condition, seconds=5.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


# --- errors reach those whom they concern ------------------------------------------------------------------


def test_what_fails_at_once_leaves_alone_what_runs_before_it(stuck):
    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a")
        with pytest.raises(ProgramError, match="schemas"):
            s += " two " + sgl.gen("b", json_schema={"type": "object"})
        stuck.gate.set()
        return s["a"]

    state = ends(lambda: program.run(backend=stuck))
    assert state.ret_value == "<1>" and state.text() == "one <1> two "
    assert "schemas" in str(state.error())


def test_results_may_arrive_behind_the_error_of_what_follows_them():
    """The engine hands texts over while it computes, errors at once."""

    class Late(RuleStream):
        def generate(self, request, on_chunk=None):
            future = super().generate(request, on_chunk)
            if request.name == "b":
                failed = type(future)()
                failed.set_exception(OSError("too long"))
                return failed
            return future

    class Backend(Instrument):
        kind = Late

    backend = Backend()
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a") + " two " + sgl.gen("b")

    state = program.run(backend=backend)
    backend.gate.set()
    assert ends(lambda: state["a"]) == "<1>"
    assert state.text() == "one <1> two " and "too long" in str(state.error())


def test_a_backend_that_gives_nonsense_leaves_nobody_waiting():
    class Nonsense(RuleStream):
        def _generate(self, request, on_chunk):
            return Generated("text", None)  # type: ignore[arg-type]

    class Backend(Instrument):
        kind = Nonsense

    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a")

    state = program.run(backend=Backend())
    with pytest.raises(ProgramError, match=r"Gen\('a'\)"):
        ends(lambda: state["a"])


def test_a_stream_that_cannot_be_aborted_still_lets_everybody_go():
    class Stubborn(RuleStream):
        def abort(self):
            raise OSError("no")

    class Backend(Instrument):
        kind = Stubborn

    backend = Backend()
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a", timeout=0.05)

    state = program.run(backend=backend)
    with pytest.raises(DeadlineExceeded):
        ends(lambda: state["a"])
    state = program.run(backend=backend, timeout=0.05)
    with pytest.raises(DeadlineExceeded):
        ends(lambda: state["a"])
    backend.gate.set()


def test_an_alarm_that_raises_does_not_silence_the_others():
    deadlines, rung = TimeoutThread(), threading.Event()
    deadlines.after(0.01, lambda: 1 / 0)
    deadlines.after(0.05, rung.set)
    assert rung.wait(5)
    rung.clear()
    deadlines.after(0.01, rung.set)
    assert rung.wait(5)


def test_a_reader_that_fails_does_not_keep_the_others_asleep():
    feed: ReplayFeed[int] = ReplayFeed()
    woken = threading.Event()
    feed.when_closed(lambda: 1 / 0)
    feed.when_closed(woken.set)
    feed.close()
    assert woken.is_set()


# --- stopping ----------------------------------------------------------------------------------------------


def test_all_samples_of_a_gen_are_stopped():
    backend = Instrument()
    backend.gate.clear()

    @sgl.function
    def program(s):
        s += "one " + sgl.gen("a", n=3)

    state = program.run(backend=backend)
    opened = backend.open_streams
    state.cancel()
    with pytest.raises(ProgramCancelled):
        ends(lambda: state["a"])
    assert eventually(lambda: state.stream_executor.is_finished), "the other samples go on"
    assert opened == 0 == backend.open_streams, "the streams of samples were not closed"


def test_a_fork_made_while_its_state_is_cancelled_is_cancelled_too(stuck):
    @sgl.function
    def program(s):
        return s.fork(1)[0]

    class Racing(RuleStream):
        """fork() comes just before cancel(), and returns just after it."""

        def fork(self, size):
            children = super().fork(size)
            root.cancel("meanwhile")
            return children

    root = sgl.lang.program.program_state.ProgramState(
        sgl.lang.interpreter.stream_executor.StreamExecutor(stuck, sgl.lang.sampling.options.DEFAULTS)
    )
    parent = root.fork(1)[0]
    parent.stream_executor.stream = Racing(stuck)
    executor, root = root.stream_executor, parent
    child = parent.fork(1)[0]
    with pytest.raises(ProgramCancelled):
        child += "more"
    assert isinstance(ends(child.error), ProgramCancelled)
    assert executor.stopped is None


def test_a_run_that_has_ended_is_not_changed_by_a_late_cancel(backend):
    @sgl.function
    def inner(s):
        s += "one " + sgl.gen("a")

    @sgl.function
    def outer(s):
        ran = inner.run(backend=backend)
        ran.sync()
        s += "word " + sgl.gen("x")
        return ran

    state = inner.run(backend=backend)
    state.sync()
    assert eventually(lambda: state.stream_executor.is_finished)
    state.cancel("too late")
    assert state.error() is None and state["a"] == "<1>"
    ran = outer.run(backend=backend, budget=sgl.Budget(operations=1))
    assert isinstance(ran.error(), BudgetExceeded)
    assert ran.ret_value.error() is None, "it was complete before the budget was passed"


def test_a_deadline_holds_for_forks_that_outlive_the_body(stuck):
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        return forks

    state = program.run(backend=stuck, timeout=0.1)
    with pytest.raises(DeadlineExceeded):
        ends(lambda: state.ret_value[1]["x"])
    stuck.gate.set()
    state = program.run(backend=stuck, timeout=0.2)
    assert [fork["x"] for fork in state.ret_value] == ["<0>", "<0>"]
    time.sleep(0.3)
    assert [fork.error() for fork in state.ret_value] == [None, None]


def test_letting_go_of_a_stream_takes_no_lock(backend):
    """__del__ may run anywhere, also in a thread that holds the state's own locks."""

    @sgl.function
    def endless(s):
        while True:
            s += "word " + sgl.gen("x")
            s["x"]

    state = endless.run(backend=backend, stream=True)
    executor = state.stream_executor
    for _ in state.text_iter():
        break
    holder = [state]
    del state

    def collect():
        with executor._counting, executor.control._lock:
            holder.clear()
            gc.collect()

    ends(collect)
    assert eventually(lambda: executor.stopped is not None)


def test_an_event_loop_that_is_gone_is_not_called(stuck, caplog):
    @sgl.function
    async def program(s):
        s += "q " + sgl.gen("a")
        await s.get("a")

    class Deaf(RuleStream):
        def abort(self):
            """Goes on."""

    stuck.open = lambda: Deaf(stuck)

    async def main():
        task = asyncio.create_task(program.arun(backend=stuck))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @sgl.function
    def plain(s):
        s += "q " + sgl.gen("a")

    async def waits():
        task = asyncio.create_task(plain.arun(backend=stuck))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
        asyncio.run(waits())
        stuck.gate.set()
        stuck.worker.submit(int).result()
    assert not caplog.records


def test_an_interrupted_batch_is_stopped(stuck):
    started = threading.Barrier(3)

    @sgl.function
    def program(s, i):
        s += f"{i} " + sgl.gen("a")
        if i == 0:
            started.wait(5)
            raise KeyboardInterrupt
        if i < 3:
            started.wait(5)
        s += s["a"]

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ends(lambda: program.run_batch([{"i": i} for i in range(6)], backend=stuck, num_threads=3))
    assert time.monotonic() - begun < 5


# --- waiting -----------------------------------------------------------------------------------------------


def test_readers_of_a_called_program_are_let_go_when_the_body_ends(backend):
    got: list = []
    called = threading.Event()
    go = threading.Event()

    @sgl.function
    def inner(s):
        s += "two " + sgl.gen("b")

    @sgl.function
    def program(s):
        got.append(s.call(inner))
        called.set()
        go.wait(5)

    state = program.run(backend=backend, stream=True)
    assert called.wait(5)
    threading.Timer(0.1, go.set).start()
    with pytest.raises(KeyError):
        ends(lambda: got[0]["never"])
    assert got[0]["b"] == "<1>" and state.error() is None


# --- values ------------------------------------------------------------------------------------------------


def test_a_called_program_that_returns_nothing_returned_nothing(backend):
    @sgl.function
    def inner(s):
        s += "two " + sgl.gen("b")

    @sgl.function
    def program(s):
        return s.call(inner)

    state = program.run(backend=backend)
    assert state.ret_value["b"] == "<1>" and state.ret_value.ret_value is None


def test_called_programs_may_use_the_name_of_an_open_scope(backend):
    @sgl.function
    def inner(s):
        with s.var_scope("part"):
            s += "in " + sgl.gen("x")

    @sgl.function
    def program(s):
        with s.var_scope("part"):
            s += "out "
            called = s.call(inner)
            s += " end"
        return called["part"]

    state = program.run(backend=backend)
    assert state["part"] == "out in <2> end" and state.ret_value == "in <2>"


def test_typed_values_of_samples_in_forks(backend):
    numbers = RuleBackend(lambda prompt, request: str(len(prompt)))

    @sgl.function
    def program(s):
        s += "n "
        forks = s.fork(2)
        forks += sgl.gen("x", int, n=2)
        forks += sgl.gen("y", int)
        forks.join()
        s["given"] = 5
        return s.get("x"), s.get("y"), s.get("given"), s.get("given", int), s.get("y", float)

    x, y, given, as_int, as_float = program.run(backend=numbers).ret_value
    assert x == [[2, 2], [2, 2]] and y == [3, 3] and (given, as_int, as_float) == (5, 5, [3.0, 3.0])


def test_chunks_that_come_late_are_not_read(backend):
    from sgl.lang.interpreter.state_transcript import PendingText

    piece = PendingText(sgl.gen("a"), None)
    piece.chunk(Generated("one "))
    piece.fail(ProgramError("stopped"))
    piece.chunk(Generated("two "))
    assert piece.streamed == "one "


def test_errors_and_programs_travel_between_processes():
    error = DeadlineExceeded("too late", SourceLocation("program.py", 3))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "program.py:3: too late" and again.where == error.where
    assert pickle.loads(pickle.dumps(portable)) is portable


@sgl.function
def portable(s):
    s += "one " + sgl.gen("a")
