"""Prefixes that come back from main memory are those that left: texts and log-probabilities say so."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_engine import prompt
from test_engine_machine import EngineMachine

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.cache.host_kv_pages import HostKVPages
from sgl.runtime.cache.kv_pool import PAD_SLOT, KVPool
from sgl.runtime.errors import ConfigError

TOKEN = 3 * 2 * 2 * 16 * 4  # bytes of the tiny model's keys and values
GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=True)
Found = list[tuple[list[int], list[float]]]


# the copies


@pytest.mark.parametrize("staging", [1, 9000, 2**20])
@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_pages_come_back_bit_by_bit_to_wherever_they_are_wanted(dtype, page_size, staging):
    pool = KVPool(3, 40 * page_size, 2, 5, dtype)
    for stored in (pool.k, pool.v):
        stored.view(torch.uint8).random_(0, 255)
    before = [stored.view(torch.uint8).clone() for stored in (pool.k, pool.v)]
    copies = HostKVPages(pool, page_size, 30, staging)
    rng = np.random.default_rng(0)
    pages, places, others = (rng.permutation(np.arange(1, 30, dtype=np.int32))[:20] for _ in range(3))
    copies.save(pages, places)
    pool.fill_nan(slots(np.arange(1, 40), page_size))
    copies.load(places[::2], others[::2])
    for stored, expected in zip((pool.k, pool.v), before, strict=True):
        found = stored.view(torch.uint8)
        assert torch.equal(found[:, slots(others[::2], page_size)], expected[:, slots(pages[::2], page_size)])
        untouched = slots(np.setdiff1d(np.arange(1, 40), others[::2]), page_size)
        assert stored[:, untouched].float().isnan().all()
        assert torch.equal(found[:, PAD_SLOT], expected[:, PAD_SLOT])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_freed_places_are_poisoned(dtype):
    pool = KVPool(2, 20, 2, 4, dtype)
    copies = HostKVPages(pool, 1, 20)
    numbers = np.arange(1, 9, dtype=np.int32)
    copies.save(numbers, numbers)
    copies.fill_nan(numbers[:4])
    copies.load(numbers, numbers + 9)
    assert pool.k[:, 10:14].float().isnan().all() and pool.v[:, 10:14].float().isnan().all()
    assert not pool.k[:, 14:18].float().isnan().any() and not pool.v[:, 14:18].float().isnan().any()


def slots(pages: np.ndarray, page_size: int) -> torch.Tensor:
    return torch.from_numpy((pages[:, None].astype(np.int64) * page_size + np.arange(page_size)).ravel())


# the engine, with and without


def conversations(engine: Engine, count: int, turns: int, seed: int = 0) -> Found:
    """Several talks by turns, each turn a new sequence that begins with all that was said before."""
    rng, system = random.Random(seed), prompt(99, 20)
    said = [system + prompt(index, 5 + index) for index in range(count)]
    found: Found = []
    for _ in range(turns):
        for group in np.array_split(rng.sample(range(count), count), max(1, count // 3)):
            sequences = {int(index): engine.open() for index in group}
            for index, sequence in sequences.items():
                said[index] = said[index] + rng.choices(range(4, 320), k=rng.randrange(1, 30))
                sequence.extend(said[index])
            futures = {index: sequence.generate(GREEDY) for index, sequence in sequences.items()}
            for index, future in futures.items():
                done = future.result(60)
                found.append((done.token_ids, [value for value, _ in done.logprobs]))
                said[index] = said[index] + done.token_ids
    return found


@pytest.fixture(scope="module")
def undisturbed(tiny) -> Found:
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=20_000, deterministic=True) as engine:
        return conversations(engine, 7, 4)


@pytest.mark.parametrize(("page_size", "host_tokens"), [(1, 60), (1, 400), (4, 400), (4, 5000)])
def test_texts_and_logprobs_are_the_same_to_the_bit(open_engine, undisturbed, page_size, host_tokens):
    engine = open_engine(kv_tokens=320, page_size=page_size, host_kv=host_tokens * TOKEN, deterministic=True)
    assert conversations(engine, 7, 4) == undisturbed
    stats = engine.stats()
    assert stats.host_tokens > host_tokens - page_size - 10 or host_tokens == 5000
    assert host_tokens == 60 or stats.host_hits > 100


def test_less_is_computed(open_engine):
    computed: dict[bool, int] = {}
    for on in (False, True):
        engine = open_engine(kv_tokens=320, host_kv=5000 * TOKEN if on else 0)
        conversations(engine, 7, 4)
        stats = engine.stats()
        computed[on] = stats.computed_tokens
        assert (stats.host_hits > 0) is (stats.host_tokens > 0) is on
    assert computed[True] < 0.6 * computed[False]


@pytest.mark.parametrize("page_size", [1, 4])
def test_what_was_preempted_comes_back(open_engine, page_size):
    """Running sequences are thrown out and their pages given to nobody: they find their tokens in main memory."""
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)

    def run(**options: Any) -> tuple[list[list[int]], int]:
        engine = open_engine(deterministic=True, page_size=page_size, **options)
        core, steps = engine._core, iter(range(10**9))

        def disturb() -> None:
            if next(steps) % 4 == 0 and core.scheduler.running:
                core.scheduler.preempt(core.scheduler.running[-1])
                core.cache.tree.evict(core.cache.pool.total)
            core.check()

        core.after_step = disturb
        sequences = [engine.open() for _ in range(6)]
        for seed, sequence in enumerate(sequences):
            sequence.extend(prompt(seed, 40))
        done = [future.result(60).token_ids for future in [sequence.generate(params) for sequence in sequences]]
        assert engine.stats().preemptions > 3
        return done, engine.stats().computed_tokens

    (texts, computed), (expected, alone) = run(host_kv=2000 * TOKEN), run()
    assert texts == expected and computed < 0.8 * alone


@pytest.mark.few(1)
@pytest.mark.parametrize(("page_size", "host_tokens"), [(1, 90), (3, 900)])
def test_a_mix_of_everything(open_engine, tiny, page_size, host_tokens):
    """Forks, aborts, priorities, namespaces, pins, flushes and sleeps, in a pool for two or three of twelve texts."""
    rng = random.Random(page_size)
    engine = open_engine(
        kv_tokens=240, page_size=page_size, step_tokens=48, host_kv=host_tokens * TOKEN, deterministic=True
    )
    stems, found = [prompt(seed, 100) for seed in range(12)], []
    for _ in range(8):
        asked = []
        for _ in range(6):
            tokens = rng.choice(stems)[: rng.randrange(20, 100)] + rng.choices(range(4, 320), k=rng.randrange(1, 9))
            sequence = engine.open(rng.randrange(2), namespace=rng.choice(["", "", "a"]))
            sequence.extend(tokens)
            asked += [(tokens, child, child.generate(GREEDY)) for child in (sequence, *sequence.fork(rng.randrange(2)))]
        if rng.random() < 0.3:
            asked.pop()[1].abort()
        rng.choice(
            [engine.check, engine.check, engine.check, engine.flush_cache, lambda: (engine.sleep(), engine.wake())]
        )()
        pinned = [engine.pin(rng.choice(stems)[:40])] if rng.random() < 0.4 else []
        found += [(tokens, future.result(60)) for tokens, _, future in asked]
        for pin in pinned:
            pin.release()
        del asked
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, deterministic=True) as undisturbed:
        for tokens, done in found:
            sequence = undisturbed.open()
            sequence.extend(tokens)
            expected = sequence.generate(GREEDY).result(60)
            assert (done.token_ids, done.logprobs) == (expected.token_ids, expected.logprobs)
    assert engine.stats().host_hits > 0


def test_random_operations_lose_no_page_and_change_no_text(tiny):
    for run_ahead in (False, True):
        EngineMachine.path = tiny
        EngineMachine.options = {"device": "cpu", "run_ahead": run_ahead, "host_kv": 300 * TOKEN}
        run_state_machine_as_test(
            EngineMachine, settings=settings(max_examples=5, stateful_step_count=60, deadline=None)
        )


# namespaces, flush, sleep, the end


def cached(engine: Engine, tokens: list[int], namespace: str = "") -> int:
    sequence = engine.open(namespace=namespace)
    sequence.extend(tokens)
    return sequence.generate(GREEDY).result(60).cached_tokens


def push_out(engine: Engine) -> None:
    for seed in range(50, 53):
        cached(engine, prompt(seed, 120))


def test_namespaces_are_kept_apart(open_engine):
    engine, tokens = open_engine(kv_tokens=200, host_kv=2000 * TOKEN), prompt(1, 100)
    assert cached(engine, tokens, "one") == 0
    push_out(engine)
    assert cached(engine, tokens, "other") == 0
    push_out(engine)
    hits = engine.stats().host_hits
    assert cached(engine, tokens, "one") == cached(engine, tokens, "other") == 99
    assert engine.stats().host_hits >= hits + 198


def test_flush_clears_both(open_engine):
    engine, tokens = open_engine(kv_tokens=200, host_kv=2000 * TOKEN), prompt(1, 100)
    cached(engine, tokens)
    push_out(engine)
    assert engine.stats().host_tokens > 100
    engine.flush_cache()
    assert engine.stats().host_tokens == 0 and cached(engine, tokens) == 0


def test_prefixes_survive_a_sleep_in_main_memory(open_engine):
    engine, tokens = open_engine(host_kv=2000 * TOKEN, deterministic=True), prompt(1, 100)
    sequence = engine.open()
    sequence.extend(tokens)
    expected = sequence.generate(GREEDY).result(60)
    assert engine.stats().host_tokens == 0
    engine.sleep()
    assert engine.stats().host_tokens >= 100
    engine.wake()
    again = engine.open()
    again.extend(tokens)
    done = again.generate(GREEDY).result(60)
    assert done.cached_tokens == 99
    assert (done.token_ids, done.logprobs) == (expected.token_ids, expected.logprobs)


def test_a_sleep_keeps_what_was_used_last(open_engine):
    engine = open_engine(host_kv=150 * TOKEN)
    old, new = prompt(1, 120), prompt(2, 120)
    cached(engine, old)
    cached(engine, new)
    engine.sleep()
    engine.wake()
    assert cached(engine, new) == 119 and cached(engine, old) < 40


@pytest.mark.parametrize("broken", ["save", "load"])
def test_a_copy_that_fails_costs_a_prefix_and_not_the_engine(open_engine, broken):
    """As where the device has no room left for what a copy needs."""
    engine, tokens = open_engine(kv_tokens=200, host_kv=2000 * TOKEN), prompt(1, 100)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    cached(engine, tokens)
    setattr(engine._core.cache.host.copies, broken, fail)
    push_out(engine)
    assert cached(engine, tokens) < 60
    engine.sleep()
    engine.wake()
    assert len(engine.generate("a", GREEDY).token_ids) == 8
    engine.check()


def test_close_gives_the_memory_back_while_handles_live(open_engine):
    engine = open_engine(kv_tokens=200, host_kv=2000 * TOKEN)
    sequence = engine.open()
    cached(engine, prompt(1, 100))
    push_out(engine)
    kept = weakref.ref(engine._core.cache.host.copies)
    engine.close()
    gc.collect()
    assert kept() is None and sequence.id
    assert engine._core.cache.host is None


def test_refused_sizes(tiny):
    for size in ("much", -1, "9000GB", 100):
        with pytest.raises(ConfigError, match=r"host_kv.*'4GB'|host_kv.*main memory|host_kv=.*'2GB'"):
            Engine(tiny, dtype="float32", threads=1, kv_tokens=64, host_kv=size)


def test_the_size_is_kept(tiny):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=64, host_kv="1MB") as engine:
        assert engine.info()["host_kv_bytes"] == 10**6
        assert engine._core.cache.host.capacity == 10**6 // TOKEN
