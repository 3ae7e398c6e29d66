"""A process that is stopped or hangs is noticed, deadlines hold without its help, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, DeadlineExceeded, EngineDied, RuntimeFailure
from sgl.runtime.process import remote_core
from sgl.runtime.process.engine_connection import EngineConnection

SECONDS = 30
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=100_000, temperature=0, ignore_eos=True)
SITE = """
import ctypes, os, sys, threading, time
def hang_when_told():
    while True:
        while not os.path.exists({mark!r}):
            time.sleep(0.01)
        how, scheduler = open({mark!r}).read(), sys.modules["sgl.runtime.scheduling.scheduler"].Scheduler
        if how == "lock":
            ctypes.PyDLL(None).sleep(1000)
        sys.modules["sgl.runtime.process.loop_watch"].STEP = 3 if how == "loop" else 20
        usual, scheduler.plan = scheduler.plan, lambda self: time.sleep(1e6 if how == "loop" else 3) or usual(self)
        while os.path.exists({mark!r}):
            time.sleep(0.01)
        scheduler.plan = usual
threading.Thread(target=hang_when_told, daemon=True).start()
"""


@pytest.fixture(scope="module")
def engine(tiny, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        opened = Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, process=True, heartbeat=1.0)
    with opened:
        yield opened


def tell(place: Path, how: str) -> None:
    (place / "new").write_text(how)
    (place / "new").rename(place / "now")
    time.sleep(0.3)


def untell(place: Path) -> None:
    """Until the other process has seen that the mark is gone: a new one that
    follows at once would be taken for the old.
    """
    (place / "now").unlink()
    time.sleep(0.1)


def prompted(engine: Engine, **terms: Any) -> Any:
    sequence = engine.open(**terms)
    sequence.extend([5, 6, 7])
    return sequence


def stop(engine: Engine) -> int:
    pid = engine.info()["pid"]
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_stopped_process_is_killed_and_started_again(engine):
    pid, restarts = engine.info()["pid"], engine.info()["restarts"]
    futures = [prompted(engine).generate(LONG) for _ in range(3)]
    stop(engine)
    began = time.monotonic()
    for future in futures:
        with pytest.raises(EngineDied, match=rf"pid {pid}.*no sign of life for 1 s.*started again"):
            future.result(SECONDS)
    assert time.monotonic() - began < 10
    assert engine.generate("hello", GREEDY).completion_tokens == 8 and engine.info()["restarts"] == restarts + 1


@pytest.mark.whole
def test_stats_of_a_stopped_process_end(engine, monkeypatch):
    stop(engine)
    with monkeypatch.context() as patch, pytest.raises(RuntimeFailure, match=r"within 0.2 s; glance\(\)"):
        patch.setattr(remote_core, "ANSWER", 0.2)
        engine.stats()
    with pytest.raises(EngineDied):
        engine.stats()
    assert engine.generate("hello", GREEDY).completion_tokens == 8


@pytest.mark.whole
def test_a_lock_that_is_never_given_back_is_noticed(engine, place):
    tell(place, "lock")
    with pytest.raises(EngineDied, match="no sign of life"):
        prompted(engine).generate(LONG).result(SECONDS)
    untell(place)
    assert engine.generate("hello", GREEDY).completion_tokens == 8


@pytest.mark.whole
def test_a_long_step_is_no_hang(engine, place):
    tell(place, "step")
    restarts = engine.info()["restarts"]
    assert engine.generate("hello", max_tokens=1, temperature=0).completion_tokens == 1
    assert engine.info()["restarts"] == restarts
    untell(place)
    engine.check()  # between steps: the last long one is over


@pytest.mark.whole
def test_a_loop_that_hangs_ends_its_process(engine, place):
    """A step may take three seconds here, and the deadline holds before."""
    tell(place, "loop")
    began = time.monotonic()
    late, waits = prompted(engine, timeout=0.5).generate(GREEDY), prompted(engine).generate(GREEDY)
    with pytest.raises(DeadlineExceeded, match="engine's process has said nothing"):
        late.result(SECONDS)
    assert time.monotonic() - began < 3
    untell(place)
    with pytest.raises(EngineDied, match="exit code 71, as its loop did not go on"):
        waits.result(SECONDS)
    assert engine.generate("hello", GREEDY).completion_tokens == 8


@pytest.mark.whole
def test_deadlines_hold_while_nothing_runs(tiny, monkeypatch):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, process=True, heartbeat=None) as engine:
        pid = stop(engine)
        sequence = prompted(engine, timeout=0.3)
        futures = [sequence.generate(GREEDY), sequence.fork(1)[0].prefill()]
        for future in futures:
            assert isinstance(future.exception(SECONDS), DeadlineExceeded)
        time.sleep(2)
        assert engine.info()["restarts"] == 0 and engine.up  # without a heartbeat it is waited for
        os.kill(pid, signal.SIGCONT)
        assert engine.generate("hello", GREEDY).completion_tokens == 8 and engine.info()["pid"] == pid
        engine.check()


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 10**400, "1", True])
def test_a_heartbeat_is_a_number_of_seconds(tiny, value):
    with pytest.raises(ConfigError, match="heartbeat"):
        Engine(tiny, heartbeat=value)


def test_what_expires_is_failed_once():
    link = EngineConnection()
    futures = []
    for at in (5.0, -5.0, -3.0):
        future = link.ask("check")
        futures.append(future)
        link._due.append(remote_due(time.monotonic() + at, len(futures)))
    link._due.sort()
    link.expire()
    assert [future.done() for future in futures] == [False, True, True]
    link.end(EngineDied("ended"), EngineDied("later"))
    assert isinstance(futures[0].exception(), EngineDied) and isinstance(futures[1].exception(), DeadlineExceeded)


def remote_due(deadline: float, number: int) -> Any:
    from sgl.runtime.process.engine_connection import OpDeadline

    return OpDeadline(deadline, number)
