"""Opening, closing and calling the engine from wherever its host happens to be."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest
from alone import alone

import sgl
from sgl.runtime import Engine, SamplingParams

ONE = SamplingParams(max_tokens=2, temperature=0)


def scheduler_threads() -> int:
    return sum(thread.name == "sgl-scheduler" for thread in threading.enumerate())


@alone
def test_closing_gives_back_the_weights_the_cache_and_the_thread(tiny):
    """A reference to every tensor dies with the engine, and a second one opens."""
    for _ in range(2):
        before = scheduler_threads()
        engine = Engine(tiny, dtype="float32", threads=1, kv_tokens=2048)
        engine.generate("hello", ONE)
        core = engine._core
        alive = [
            weakref.ref(core.runner.model),
            weakref.ref(core.runner.model.embedding.table),
            weakref.ref(core.runner.attention),
        ]
        assert scheduler_threads() == before + 1
        engine.close()
        del core
        gc.collect()
        assert scheduler_threads() == before
        assert not any(ref() is not None for ref in alive)


@pytest.mark.whole
@alone
def test_dropping_the_last_reference_closes(tiny):
    before = scheduler_threads()
    engine = Engine(tiny, dtype="float32", threads=1, kv_tokens=512)
    sequence = engine.open()
    sequence.extend([5, 6])
    sequence.generate(ONE).result(30)
    core = weakref.ref(engine._core)
    del engine, sequence
    gc.collect()
    assert scheduler_threads() == before and core() is None


def test_pages_of_dropped_sequences_come_back(engine):
    for _ in range(20):
        sequence = engine.open()
        sequence.extend(list(range(4, 100)))
        children = sequence.fork(3)
        for child in children:
            child.generate(ONE)
    del sequence, children, child
    gc.collect()
    engine.flush_cache()
    engine.generate("x", ONE)
    end = time.monotonic() + 10
    while engine._core.life.live and time.monotonic() < end:  # those that wait for another's prefill end a step later
        time.sleep(0.01)
    engine.flush_cache()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and not engine._core.life.live


def test_two_engines_side_by_side(tiny):
    with Engine(tiny, dtype="float32", kv_tokens=512) as a, Engine(tiny, dtype="float32", kv_tokens=512) as b:
        assert a.generate("hi", ONE).token_ids == b.generate("hi", ONE).token_ids


def test_the_switch_interval_is_put_back(tiny):
    usual = sys.getswitchinterval()
    with Engine(tiny, dtype="float32", kv_tokens=512) as a, Engine(tiny, dtype="float32", kv_tokens=512) as b:
        sequences = [engine.open() for engine in (a, b, a, b)]
        for sequence in sequences:
            sequence.extend([5, 6])
        futures = [sequence.generate(SamplingParams(max_tokens=40, ignore_eos=True)) for sequence in sequences]
        assert all(future.result(30) for future in futures)
    assert sys.getswitchinterval() == usual


@sgl.function
def hello(s):
    s += "Hello" + sgl.gen("x", max_tokens=4, temperature=0)


def test_the_same_answer_from_every_kind_of_caller(engine):
    """Trap 7.12: main thread, worker thread, inside a running event loop."""
    answers = [hello.run(backend=engine)["x"]]

    def work() -> None:
        answers.append(hello.run(backend=engine)["x"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)

    async def inside() -> None:
        work()
        state = await hello.arun(backend=engine)
        answers.append(state["x"])
        pieces = [piece async for piece in hello.run(backend=engine, stream=True).text_async_iter("x")]
        answers.append("".join(pieces))

    asyncio.run(inside())
    assert len(answers) == 5 and len(set(answers)) == 1


ALONE = """
import socket
def refuse(*args, **kwargs):
    raise OSError("the network is off")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
import sgl
with sgl.Engine({path!r}, dtype="float32", kv_tokens=512) as engine:
    print(engine.generate("hello", max_tokens=2, temperature=0).completion_tokens)
"""


@pytest.mark.whole
def test_a_local_model_needs_no_network_and_the_process_ends(tiny):
    """Trap 7.13, and `python -c`."""
    run = subprocess.run(
        [sys.executable, "-c", ALONE.format(path=str(tiny))], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0 and run.stdout.strip() == "2", run.stderr


@pytest.mark.whole
def test_a_script_that_forgets_to_close_ends_all_the_same(tiny):
    code = f"import sgl; e = sgl.Engine({str(tiny)!r}, kv_tokens=512); e.generate('hello', max_tokens=2); print('done')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout.strip() == "done" and not run.stderr, run.stderr
