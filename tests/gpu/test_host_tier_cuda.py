"""Evicted prefixes in locked main memory: bit by bit what left the device, while steps run ahead and replay graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from alone import alone
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from test_engine import prompt
from test_engine_machine import EngineMachine
from test_host_tier import TOKEN, Found, cached, conversations, push_out, slots

from sgl.runtime import Engine
from sgl.runtime.cache.host_kv_pages import HostKVPages
from sgl.runtime.cache.kv_pool import KVPool

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

KINDS: list[dict[str, Any]] = [
    {},
    {"graphs": False},
    {"run_ahead": False},
    {"attention": "torch_native"},
    {"attention": "triton", "page_size": 16},
    {"attention": "triton", "page_size": 4, "step_tokens": 16},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


def open_engine(tiny: Path, **options: Any) -> Engine:
    options = {
        "device": "cuda",
        "dtype": "float32",
        "kv_tokens": 336,
        "host_kv": 4000 * TOKEN,
        "poison_freed": True,
    } | options
    engine = Engine(tiny, **options)
    engine._core.after_step = engine._core.check
    return engine


# the copies


@pytest.fixture
def stream() -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
        torch.cuda.current_stream().synchronize()


@pytest.mark.parametrize("staging", [1, 50_000, 2**24])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_pages_and_places_may_be_written_right_after_and_nobody_waits(stream, dtype, page_size, staging):
    pool = KVPool(4, 80 * page_size, 2, 64, dtype, "cuda")
    for stored in (pool.k, pool.v):
        stored.view(torch.uint8).random_(0, 255)
    before = [stored.view(torch.uint8).clone() for stored in (pool.k, pool.v)]
    copies = HostKVPages(pool, page_size, 60, staging)
    rng = np.random.default_rng(0)
    pages, places, others = (rng.permutation(np.arange(1, 60, dtype=np.int32))[:50] for _ in range(3))
    every = slots(np.arange(1, 80), page_size).cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(50_000_000)  # the device is busy while all of this is queued
        copies.save(pages, places)
        for stored in (pool.k, pool.v):
            stored.view(torch.uint8).index_fill_(1, every, 0x7F)
        copies.load(places, others)
        copies.fill_nan(places)
        copies.save(pages[::-1].copy(), places)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for stored, expected in zip((pool.k, pool.v), before, strict=True):
        found = stored.view(torch.uint8)[:, slots(others, page_size).cuda()]
        assert torch.equal(found, expected[:, slots(pages, page_size).cuda()])
    torch.cuda.synchronize()
    copies.close()


ALREADY_LOCKED = 712  # cudaErrorHostMemoryAlreadyRegistered


def locked(memory: torch.Tensor) -> bool:
    """Whether the driver has the memory locked (`is_pinned` knows only what torch locked itself)."""
    driver = torch.cuda.cudart()
    status = int(driver.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if status == 0:
        driver.cudaHostUnregister(memory.data_ptr())
        return False
    with suppress(RuntimeError):  # the error is told once more to whoever launches next
        torch.zeros(1, device="cuda")
    assert status == ALREADY_LOCKED, status
    return True


def test_the_memory_is_locked_until_the_end():
    pool = KVPool(2, 100, 2, 64, torch.bfloat16, "cuda")
    for _ in range(3):
        copies = HostKVPages(pool, 1, 100)
        kept = copies._kept
        assert locked(kept)
        copies.close()
        assert not locked(kept)
    copies = HostKVPages(pool, 1, 100)
    kept = copies._kept
    del copies  # never closed
    assert not locked(kept)


def test_small_stores_of_several_engines_lie_beside_each_other():
    pool = KVPool(2, 20, 2, 64, torch.bfloat16, "cuda")
    many = [HostKVPages(pool, 1, 5) for _ in range(8)]
    assert all(locked(copies._kept) for copies in many)
    for copies in many:
        copies.close()


# the engine


@pytest.fixture(scope="module")
def on_the_cpu(tiny) -> Found:
    with Engine(tiny, device="cpu", dtype="float32", threads=1, kv_tokens=20_000) as engine:
        return conversations(engine, 7, 4)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_texts_are_those_of_the_cpu(tiny, on_the_cpu, options):
    with open_engine(tiny, **options) as engine:
        found = conversations(engine, 7, 4)
        stats = engine.stats()
    assert [ids for ids, _ in found] == [ids for ids, _ in on_the_cpu]
    ours, theirs = ([value for _, values in those for value in values] for those in (found, on_the_cpu))
    assert np.allclose(ours, theirs, atol=1e-3)
    assert stats.host_hits > 100 and stats.host_tokens > 100


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_and_logprobs_are_the_same_to_the_bit(tiny, dtype):
    options = {"dtype": dtype, "deterministic": True}
    with open_engine(tiny, **options) as engine:
        found = conversations(engine, 7, 4)
        assert engine.stats().host_hits > 100
    with open_engine(tiny, **options, host_kv=0, kv_tokens=20_000) as engine:
        assert conversations(engine, 7, 4) == found


def stored(engine: Engine, tokens: list[int]) -> tuple[int, list[torch.Tensor]]:
    """How many of the tokens are cached, and the bytes of their keys and values."""
    core = engine._core

    def read() -> tuple[int, list[torch.Tensor]]:
        match, pool = core.cache.tree.match(np.array(tokens, np.int32)), core.runner.attention.pool
        index = slots(match.pages, engine.config.page_size).to(pool.device)
        return match.length, [kept.view(torch.uint8)[:, index].cpu() for kept in (pool.k, pool.v)]

    return core.call(read)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    "options", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "kv_dtype": "fp8"}], ids=str
)
def test_keys_and_values_come_back_bit_by_bit(tiny, options, page_size):
    with open_engine(tiny, page_size=page_size, **options) as engine:
        tokens, whole = prompt(1, 120), 119 - 119 % page_size  # the last token is computed every time
        cached(engine, tokens)
        length, before = stored(engine, tokens[:whole])
        for _ in range(3):
            push_out(engine)
            assert stored(engine, tokens[:whole])[0] < length == whole
            hits = engine.stats().host_hits
            assert cached(engine, tokens) == whole
            assert engine.stats().host_hits > hits
            again, after = stored(engine, tokens[:whole])
            assert again == length and all(map(torch.equal, before, after))


def test_prefixes_survive_a_sleep_in_main_memory(tiny):
    with open_engine(tiny, deterministic=True, kv_tokens=4000) as engine:
        tokens = prompt(1, 100)
        assert cached(engine, tokens) == 0
        length, before = stored(engine, tokens[:99])
        for _ in range(2):
            engine.sleep()
            assert engine.stats().host_tokens >= 100
            engine.wake()
            assert cached(engine, tokens) == 99
            again, after = stored(engine, tokens[:99])
            assert again == length == 99 and all(map(torch.equal, before, after))


def test_random_operations_lose_no_page_and_change_no_text(tiny):
    EngineMachine.path, EngineMachine.options = tiny, {"device": "cuda", "host_kv": 300 * TOKEN}
    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=15, stateful_step_count=60, deadline=None))


@alone
def test_close_gives_everything_back(tiny):
    with open_engine(tiny) as warm:
        cached(warm, prompt(1, 50))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        with open_engine(tiny) as engine:
            cached(engine, prompt(1, 120))
            push_out(engine)
            kept = engine._core.cache.host.copies._kept
            assert locked(kept)
        assert not locked(kept)
        assert torch.cuda.memory_allocated() <= before + 2**20
