"""What an engine does with Python's collector of cyclic garbage, and that it is put back."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from alone import alone
from checkpoints import write_checkpoint

from sgl.runtime import Engine, SamplingParams
from sgl.runtime import engine as engine_module
from sgl.runtime.common import garbage_collection
from sgl.runtime.common.garbage_collection import NEVER, collector_off


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


@pytest.mark.whole
@alone
def test_what_stands_is_frozen_until_the_last_engine_is_closed(tiny: Path) -> None:
    usual, frozen = gc.get_threshold(), gc.get_freeze_count()
    with Engine(tiny, kv_tokens=500) as first:
        assert gc.get_freeze_count() > frozen + 1000
        with Engine(tiny, kv_tokens=500) as second:
            second.generate("a", SamplingParams(max_tokens=3))
        assert gc.get_freeze_count() > frozen + 1000
        first.generate("a", SamplingParams(max_tokens=3))
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == usual


@alone
def test_what_its_user_has_frozen_is_left_alone(tiny: Path) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        for _ in range(2):
            with Engine(tiny, kv_tokens=500) as engine:
                engine.generate("a", SamplingParams(max_tokens=3))
                assert 1000 < gc.get_freeze_count() <= frozen
        assert 1000 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
    with Engine(tiny, kv_tokens=500):  # nor is anything frozen by the engines behind it
        assert gc.get_freeze_count() == 0


@alone
def test_nothing_is_collected_while_an_engine_starts_and_older_garbage_once_it_is_idle(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collection, "LONG_QUIET", 0.01)
    monkeypatch.setattr("sgl.runtime.loop.engine_core.LONG_QUIET", 0.01)
    looked = threading.Event()
    all_of_it = garbage_collection._look_at_all
    monkeypatch.setattr(garbage_collection, "_look_at_all", lambda: (all_of_it(), looked.set()))
    enabled: list[bool] = []
    opened = engine_module._opened
    monkeypatch.setattr(engine_module, "_opened", lambda *args: (enabled.append(gc.isenabled()), opened(*args))[1])
    older = weakref.ref(Cycle())
    with Engine(tiny, kv_tokens=500):
        assert enabled == [False] and gc.isenabled()
        assert looked.wait(30) and older() is None


def test_the_collector_is_on_again_when_the_last_one_leaves() -> None:
    assert gc.isenabled()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_off():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with collector_off():
        thread.start()
        assert inside.wait(30) and not gc.isenabled()
    assert not gc.isenabled(), "the other one is still inside"
    leave.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_off():
            pass
        assert not gc.isenabled(), "a program's own gc.disable() stays"
    finally:
        gc.enable()


IMPORTS = """
import gc
seen = []
gc.callbacks.append(lambda phase, about: seen.append(phase))
gc.set_threshold(100, 2, 2)
from sgl.runtime.common.garbage_collection import import_uncollected
gc.collect()
old = len(gc.get_objects(generation=2))
seen.clear()
module = import_uncollected("sgl.lang.sgl_function")
assert not seen, seen
assert module.SglFunction and gc.isenabled() and not gc.get_freeze_count()
assert len(gc.get_objects(generation=2)) > old + 1000
"""


def test_what_is_imported_is_old_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ENDS = """
import atexit, gc, sys
import sgl
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 1000))  # after the engine is closed, in reverse
engine = sgl.Engine(sys.argv[1], kv_tokens=500)
print(engine.generate("a", max_tokens=3).completion_tokens)
"""


def test_at_the_end_of_the_process_all_stays_frozen(tiny: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, str(tiny)], capture_output=True, text=True)
    assert done.stdout.split() == ["3", "frozen", "True"], done.stdout + done.stderr


@pytest.mark.whole
@alone
def test_steps_are_free_of_full_collections(tiny: Path) -> None:
    seen: list[int] = []
    full: list[str] = []
    idle = threading.Event()

    def on_collection(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            full.append(threading.current_thread().name)
            idle.set()

    with Engine(tiny, kv_tokens=2000) as engine:
        usual = gc.get_threshold()
        gc.set_threshold(50, 1, 1)  # so that Python would collect in full all the time
        gc.callbacks.append(on_collection)
        try:
            full.clear(), idle.clear()
            engine.generate(
                "a",
                SamplingParams(max_tokens=100, ignore_eos=True),
                on_chunk=lambda chunk: seen.append(gc.get_threshold()[2]),
            )
            assert len(seen) > 10 and set(seen[:-1]) == {NEVER}  # the last one is handed out when the step is over
            assert idle.wait(10), "nothing was collected once the engine was idle"
            assert set(full) <= {"sgl-scheduler", "sgl-grammars"}  # what an idle engine runs
            assert gc.get_threshold() == (50, 1, 1)
        finally:
            gc.callbacks.remove(on_collection)
            gc.set_threshold(*usual)


@pytest.mark.whole
@alone
@pytest.mark.parametrize("sooner", ["OFTEN", "MANY"])
def test_garbage_of_a_long_run_goes_between_steps_and_what_outlives_it_later(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, sooner: str
) -> None:
    monkeypatch.setattr(garbage_collection, sooner, 0)
    monkeypatch.setattr(garbage_collection, "QUIET", 1000.0)
    looked = threading.Event()
    all_of_it = garbage_collection._look_at_all
    monkeypatch.setattr(garbage_collection, "_look_at_all", lambda: (all_of_it(), looked.set()))
    with Engine(tiny, kv_tokens=2000) as engine:
        held: list[object] = []

        def work() -> None:
            engine.generate(
                "a",
                SamplingParams(max_tokens=200, ignore_eos=True),
                on_chunk=lambda _: held.append([[] for _ in range(1000)]),
            )

        lost, kept, frozen = weakref.ref(Cycle()), Cycle(), gc.get_freeze_count()
        work()  # the young collections by which an old one becomes due
        assert lost() is None and gc.get_freeze_count() > frozen + 10_000 and not looked.is_set()
        lost = weakref.ref(kept)
        del kept
        gc.collect()
        assert lost() is not None, "it was not frozen"
        assert looked.wait(30) and lost() is None
        lost = weakref.ref(Cycle())
        gc.freeze()
        monkeypatch.setattr(garbage_collection, "WHOLE", 0.0)
        work()
        assert lost() is None
    assert gc.get_freeze_count() == 0
