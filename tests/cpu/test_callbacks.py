"""What a callback raises is its own affair, be it SystemExit; and where the loop does end, everybody is told why."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

import sgl
from sgl.lang.errors import ProgramError
from sgl.lang.sampling.choices import ChoicesSamplingMethod
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import EngineClosed, EngineFailed, RuntimeFailure

SECONDS = 20
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONGER = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
ERRORS: list[BaseException] = [
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    StopIteration(),
    pytest.fail.Exception("failed by pytest"),
    MemoryError(),
    ValueError("usual"),
]


class Speechless(BaseException):
    """It cannot be shown, told or copied."""

    def __str__(self) -> str:
        raise asyncio.CancelledError("no words")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


every_error = pytest.mark.parametrize("error", [*ERRORS, Speechless()], ids=lambda error: type(error).__name__)


def prompted(engine: Engine, tokens: list[int]) -> Any:
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence


def works(engine: Engine) -> bool:
    engine.check()
    return engine.up and engine.generate("still here", GREEDY).completion_tokens == 8


def raising(error: BaseException, at: int = 1, behind: threading.Event | None = None) -> Any:
    """behind: is waited for before the error is raised."""
    calls = iter(range(1, 10**6))

    def call(*_: Any) -> None:
        if next(calls) >= at:
            assert behind is None or behind.wait(SECONDS)
            raise error

    return call


@every_error
@pytest.mark.parametrize("at", [1, 3], ids=["first", "third"])
def test_a_chunk_callback_may_raise_anything(engine, error, at):
    alone = prompted(engine, [7, 8]).generate(LONGER).result(SECONDS)
    beside, spoiled = prompted(engine, [7, 8]), prompted(engine, [5, 6])
    asked = threading.Event()
    running, failed = beside.generate(LONGER), spoiled.generate(LONGER, None, raising(error, at, asked))
    behind = spoiled.generate(GREEDY)
    asked.set()
    assert type(failed.exception(SECONDS)) is type(error)
    assert behind.exception(SECONDS) is not None
    assert running.result(SECONDS).token_ids == alone.token_ids
    assert spoiled.generate(GREEDY).result(SECONDS).completion_tokens == 8  # the sequence takes new ones
    assert works(engine)


@every_error
def test_a_last_chunk_may_raise_anything(engine, error):
    def at_the_end(chunk: Any) -> None:
        if chunk.finished:
            raise error

    failed = prompted(engine, [5, 6]).generate(GREEDY, None, at_the_end)
    assert type(failed.exception(SECONDS)) is type(error) and works(engine)


@every_error
def test_a_future_s_callback_may_raise_anything(engine, error, caplog):
    """The future has its result all the same, and those who asked later are called too."""
    called: Future[str] = Future()
    with caplog.at_level(logging.ERROR, "sgl.runtime"):
        future = prompted(engine, [5, 6]).generate(GREEDY)
        future.add_done_callback(raising(error))
        future.add_done_callback(lambda done: called.set_result(threading.current_thread().name))
        assert future.result(SECONDS).completion_tokens == 8
        assert called.result(SECONDS).startswith("sgl-")
    assert "a callback of a future failed" in caplog.text
    aborted = prompted(engine, [5, 6])
    failing = aborted.generate(LONGER)
    failing.add_done_callback(raising(error))
    aborted.abort()
    assert failing.exception(SECONDS) is not None and works(engine)


def test_a_handler_of_the_log_may_raise_anything(engine):
    handler = logging.Handler()
    handler.emit = raising(SystemExit(3))
    logging.getLogger("sgl.runtime").addHandler(handler)
    try:
        future = prompted(engine, [5, 6]).generate(GREEDY)
        future.add_done_callback(raising(ValueError()))
        assert future.result(SECONDS) and works(engine)
    finally:
        logging.getLogger("sgl.runtime").removeHandler(handler)


def test_a_callback_that_would_wait_for_itself_is_told_so(engine):
    def ask_again(chunk: Any) -> None:
        engine.generate("again", GREEDY)

    failed = prompted(engine, [5, 6]).generate(GREEDY, None, ask_again)
    error = failed.exception(SECONDS)
    assert isinstance(error, RuntimeFailure) and "add_done_callback" in str(error)
    assert works(engine)


def test_a_callback_may_ask_for_what_is_there(engine):
    seen: Future[Any] = Future()

    def look(chunk: Any) -> None:
        if not seen.done():
            engine.check()
            seen.set_result(engine.stats())

    prompted(engine, [5, 6]).generate(GREEDY, None, look).result(SECONDS)
    assert seen.result(SECONDS).running <= 1 and works(engine)  # in a process of its own it may be done by then


@every_error
def test_a_choices_method_may_raise_anything(engine, error):
    @sgl.function
    def choose(s):
        s += "A or B? " + sgl.select("x", ["A", "B"], choices_method=Broken(error)) + sgl.gen("y", max_tokens=2)

    state = choose.run(backend=engine)
    with pytest.raises(ProgramError, match="failed"):
        state["x"]
    with pytest.raises(ProgramError):
        state["y"]
    assert works(engine)


class Broken(ChoicesSamplingMethod):
    requires_unconditional_logprobs = False

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, **given: Any) -> Any:
        raise self.error


@every_error
def test_what_a_value_is_read_with_may_raise_anything(engine, error, monkeypatch):
    from sgl.lang.interpreter.state_transcript import PendingText

    monkeypatch.setattr(PendingText, "_count", raising(error))

    @sgl.function
    def ask(s):
        s += "Say: " + sgl.gen("x", max_tokens=2)

    state = ask.run(backend=engine)
    with pytest.raises(ProgramError):
        state["x"]


# the loop's end


@pytest.mark.parametrize(
    "error", [SystemExit(3), RuntimeError("pages are lost"), Speechless()], ids=lambda e: type(e).__name__
)
def test_a_loop_that_ends_tells_everybody(open_engine, error):
    engine = open_engine()
    running, queued = prompted(engine, [5, 6]), prompted(engine, [7, 8])
    begun = threading.Event()
    futures = [running.generate(SamplingParams(max_tokens=400, ignore_eos=True), None, lambda chunk: begun.set())]
    assert begun.wait(SECONDS)
    at_end, asked, children = threading.Event(), threading.Event(), queued.fork(2)
    fails = raising(error, behind=asked)
    engine._core.after_step = lambda: (at_end.set(), fails())
    assert at_end.wait(SECONDS)  # of a step: what is asked for now is in no other
    futures += [running.generate(GREEDY), queued.generate(GREEDY), *(child.prefill() for child in children)]
    futures[-1].add_done_callback(raising(SystemExit(4)))
    asked.set()
    for future in futures:
        told = future.exception(SECONDS)
        assert isinstance(told, EngineFailed) and isinstance(told, EngineClosed) and told.__cause__ is error, told
    engine._core.wait()
    assert not engine.up and engine._core.cause is error and not engine.closed
    for ask in (
        engine.stats,
        engine.check,
        engine.flush_cache,
        lambda: engine.generate("x", GREEDY),
        lambda: queued.tokens(),
    ):
        with pytest.raises(EngineFailed, match=r"the engine failed.*open a new one"):
            ask()
    engine.close()


@pytest.mark.parametrize("when", ["as it begins", "later"])
def test_a_thread_that_is_told_to_end_tells_everybody(open_engine, monkeypatch, when):
    """As a debugger, or a library that kills threads, does it."""
    import ctypes

    from sgl.runtime.loop import engine_core

    if when == "as it begins":
        monkeypatch.setattr(engine_core, "take_priority", lambda: time.sleep(0.2))
    engine = open_engine()
    future = prompted(engine, [5, 6]).generate(SamplingParams(max_tokens=500, ignore_eos=True))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(engine._core._thread.ident), ctypes.py_object(SystemExit))
    assert future.exception(SECONDS) is not None  # it hit what was done for the sequence, or the loop itself
    assert not engine.up or works(engine)
