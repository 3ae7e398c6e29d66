"""An engine in a process of its own dies and comes back, ends with its owner, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alone import alone
from server_rig import await_true

import sgl
from sgl.common.child_process.message_channel import MessageChannel
from sgl.grammars.compile import GrammarRecipe
from sgl.lang.errors import ProgramError
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import CheckpointError, ConfigError, EngineClosed, EngineDied, RuntimeFailure
from sgl.runtime.process import remote_core
from sgl.runtime.process.engine_connection import EngineConnection
from sgl.runtime.process.process_start import ProcessStart

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=100_000, temperature=0, ignore_eos=True)
OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "process": True}


SITE = """
import os, sys, threading, time
def break_when_told():
    while not os.path.exists({mark!r}):
        time.sleep(0.01)
    sys.modules["sgl.runtime.scheduling.scheduler"].Scheduler.plan = lambda self: 1 / 0
threading.Thread(target=break_when_told, daemon=True).start()
"""


@pytest.fixture(scope="module")
def engine(tiny, place):
    """One for all tests that it survives: each start takes as long as `import torch`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.chdir(tiny.parent)
        patch.setattr(sys, "path", [*sys.path, Path("not read by Python itself")])
        engine = Engine(tiny.name, **OPTIONS)
    with engine:
        yield engine


def begun(engine: Engine) -> Future:
    """The last of a row of generations that fill the context again and again, once the first has given a chunk."""
    first = threading.Event()
    sequence = engine.open()
    sequence.extend([5, 6, 7])
    for _ in range(30):
        future = sequence.generate(LONG, None, lambda chunk: first.set())
        sequence.extend([5], drop=engine.info()["context"] - 8)
    assert first.wait(30)
    return future


def kill(engine: Engine, number: int = signal.SIGKILL) -> int:
    pid = engine.info()["pid"]
    os.kill(pid, number)
    return pid


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# one engine, in this order


def test_a_fork_of_this_process_leaves_the_engine_alone(engine):
    """Also where it ends as Python does, with everything finalised."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_use_and_finalize, args=(engine, sender))
    child.start()
    assert receiver.poll(30) and "forked from" in receiver.recv()
    child.join(30)
    assert engine.generate("hello", GREEDY).completion_tokens == 8 and not engine.info()["restarts"]


def _use_and_finalize(engine: Engine, sender: Any) -> None:
    try:
        engine.generate("hello", GREEDY)
    except EngineClosed as error:
        engine._finalizer()
        sender.send(str(error))


def test_killed_in_the_middle_and_back_again(engine, monkeypatch):
    before, secret = engine.generate("hello", GREEDY).token_ids, "SGL_TEST_SET_LATER"
    running, opened, asked = begun(engine), engine.open(), engine.info()["restarts"]
    opened.extend([5, 6])
    monkeypatch.setenv(secret, "1")
    at = time.monotonic()
    pid = kill(engine)
    with pytest.raises(EngineDied, match=rf"pid {pid}.*SIGKILL.*started again"):
        running.result(5)
    assert time.monotonic() - at < 5
    with pytest.raises(EngineDied, match="sequence is lost"):
        opened.tokens()
    with pytest.raises(EngineDied, match="sequence is lost"):
        opened.fork(1)[0].generate(GREEDY).result(2)
    assert engine.generate("hello", GREEDY).token_ids == before  # its path was relative to another directory than this
    assert engine.info()["pid"] != pid and engine.info()["restarts"] == asked + 1 and gone(pid)
    assert secret not in Path(f"/proc/{engine.info()['pid']}/environ").read_text()
    engine.check()


@pytest.mark.whole
def test_a_program_whose_process_is_killed_says_so_to_every_reader(engine):
    @sgl.function
    def program(s):
        s += "hello" + sgl.gen("a", max_tokens=100_000, ignore_eos=True, temperature=0)

    state = program.run(backend=engine, stream=True)
    next(state.text_iter("a"))
    kill(engine)
    for read in (lambda: state["a"], state.text, lambda: list(state.text_iter())):
        with pytest.raises(ProgramError, match=r"EngineDied: .* was killed by SIGKILL"):
            read()
    assert repr(state).startswith("ProgramState(hello")
    assert engine.generate("hello", GREEDY).token_ids


@pytest.mark.whole
def test_a_scheduler_that_fails_ends_its_process(engine, place):
    running = begun(engine)
    (place / "now").touch()
    with pytest.raises(RuntimeFailure, match="a step of the engine failed: ZeroDivisionError"):
        running.result(30)
    with pytest.raises(EngineDied, match=r"exit code 70.*started again"):  # it did not get over it
        engine.generate("hello", GREEDY)
    (place / "now").unlink()
    assert engine.generate("hello", GREEDY).completion_tokens == 8


def test_one_that_dies_again_and_again_stays_down(engine, monkeypatch):
    tried: list[object] = []
    running, before = begun(engine), engine.info()["restarts"]  # these count too, they were just now
    monkeypatch.setattr(engine._core.restart_policy, "pauses", (0.0,) * (before + 2))
    monkeypatch.setattr(ProcessStart, "child", lambda start: _no_child(tried.append(start)))
    kill(engine, signal.SIGSEGV)
    with pytest.raises(EngineDied, match=r"SIGSEGV.*is started again"):
        running.result(10)
    engine._core._thread.join(10)
    assert len(tried) == 2 and not engine._core._thread.is_alive()
    for ask in (lambda: engine.generate("hello", GREEDY), engine.stats, engine.check):
        with pytest.raises(EngineDied, match=rf"no more processes.*{before + 3} times in a row, and stays down"):
            ask()


# the end


@pytest.mark.whole
@alone
def test_dropping_the_last_reference_leaves_no_thread_process_or_descriptor(tiny):
    """`close` does the same by the same finalizer. A grammar that takes long to compile is not waited for."""

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    gc.collect()
    before = held()
    engine = Engine(tiny, **OPTIONS)
    running, pid = begun(engine), engine.info()["pid"]
    compiling = engine.open()
    compiling.extend([5, 6])
    slow = SimpleNamespace(vocabulary=engine.vocabulary, recipe=GrammarRecipe("regex", "(a|b|c){1,9}" * 200_000))
    late = compiling.generate(GREEDY, slow)
    at = time.monotonic()
    del engine
    gc.collect()
    assert time.monotonic() - at < remote_core.GRACE / 2
    for future in (running, late):
        with pytest.raises(EngineClosed):
            future.result(2)
    assert held() == before and gone(pid)


def test_the_collector_may_end_an_engine_on_any_of_its_threads(monkeypatch):
    """What sends to the process does not wait for the supervisor, which waits for it."""
    monkeypatch.setattr(ProcessStart, "child", _Silent)
    core = remote_core.RemoteCore(Path("nowhere"), EngineConfig())
    await_true(lambda: core._link.outbox.thread is not None)
    core._link.outbox._frames = lambda batch: core.stop() or b""
    core._link.post("anything")
    core._thread.join(10)
    assert not core._thread.is_alive() and not core._link.outbox.thread.is_alive()


class _Silent:
    """The other end says nothing until it is told to leave, or killed."""

    pid, code = 1, 0

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self.channel = MessageChannel(ours)

    def kill(self) -> None:
        self._theirs.shutdown(socket.SHUT_RDWR)

    def end(self, seconds: float) -> str:
        for end in (self.channel, self._theirs):
            end.close()
        return "ended"


# the beginning


def test_a_process_that_cannot_be_started(tiny, monkeypatch):
    for error in (OSError("no more processes"), ValueError("no more processes")):
        monkeypatch.setattr(ProcessStart, "child", partial(_no_child, error=error))
        with pytest.raises(EngineDied, match=r"no more processes.*before it could start"):
            Engine(tiny, **OPTIONS)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigError, match="frozen"):
        Engine(tiny, **OPTIONS)


def _no_child(*options: object, error: Exception = OSError("no more processes")) -> None:
    raise error


@pytest.mark.whole
def test_a_model_that_cannot_be_opened_is_told_as_here(tiny, tmp_path):
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    with pytest.raises(CheckpointError) as here:
        Engine(tmp_path)
    with pytest.raises(CheckpointError) as there:
        Engine(tmp_path, process=True)
    assert str(there.value) == str(here.value)


@pytest.mark.whole
def test_it_ends_with_its_parent_however_that_ends(tiny, tmp_path):
    """A script without a main guard that forgets to close, and one that is killed; at the same time."""
    opening = (
        f"import sgl, os; e = sgl.Engine({str(tiny)!r}, kv_tokens=512, process=True); e.generate('hello', "
        "max_tokens=2); print(e.info()['pid'], flush=True)"
    )
    (tmp_path / "script.py").write_text(opening)
    forgetful, killed = (
        subprocess.Popen([sys.executable, *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for script in ([tmp_path / "script.py"], ["-c", f"{opening}; os.kill(os.getpid(), 9)"])
    )
    for run, code in ((forgetful, 0), (killed, -signal.SIGKILL)):
        said, errors = run.communicate(timeout=120)
        assert run.returncode == code and not errors, errors
        await_true(lambda said=said: gone(int(said)))


@pytest.mark.whole
def test_a_program_without_stdin_stdout_and_stderr_has_engines_too(tiny, tmp_path):
    """Their numbers are free then, and sockets must not get them."""
    code = (
        f"import sgl; e = sgl.Engine({str(tiny)!r}, kv_tokens=512, process=True); "
        f"open({str(tmp_path / 'said')!r}, 'w').write(str(e.generate('hello', max_tokens=2).token_ids))"
    )
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], timeout=120, check=True)
    assert len(json.loads((tmp_path / "said").read_text())) == 2


def test_an_answer_and_an_end_never_both_reach_an_operation():
    """What is asked while a link ends is failed by one of the two, and by nobody twice."""
    for _ in range(50):
        link, asked = EngineConnection(), []
        asker = threading.Thread(
            target=lambda link=link, asked=asked: asked.extend(link.ask("check") for _ in range(50))
        )
        asker.start()
        link.end(EngineDied("ended"), EngineDied("later"))
        asker.join()
        assert all(isinstance(future.exception(1), EngineDied) for future in asked) and not link._waiting
