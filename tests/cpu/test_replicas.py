"""Several engines behind one: where sequences go, that they write what they write
on one, and what the death of one costs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks_rig import alive, same, walk
from safetensors.torch import load_file
from server_rig import await_true

import sgl
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import CheckpointError, ConfigError, EngineClosed, EngineDied, RuntimeFailure
from sgl.runtime.process.process_start import ProcessStart
from sgl.runtime.replicas.replica_routing import (
    BLOCK,
    RUNNING,
    UNCACHED,
    HashedTokenBlocks,
    ReplicaCacheEstimate,
    ReplicaRouter,
)
from sgl.runtime.replicas.replicas_core import replica_gpus, replica_options

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)


def text(*parts: tuple[int, int]) -> HashedTokenBlocks:
    """Of (seed, tokens) after each other."""
    return HashedTokenBlocks(
        "",
        np.concatenate([np.random.default_rng(seed).integers(0, 99, count) for seed, count in parts]).astype(np.int32),
    )


@pytest.mark.parametrize(
    "seen, names", [(None, ["0", "1"]), ("3, 5,7", ["3", "5"]), ("GPU-a,GPU-b", ["GPU-a", "GPU-b"])]
)
def test_each_replica_sees_a_card_of_its_own(monkeypatch, seen, names):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    options = replica_options(EngineConfig(replicas=2))
    assert [each["CUDA_VISIBLE_DEVICES"] for each in replica_gpus(options)] == names and {
        each.device for each in options
    } == {"cuda"}
    assert (
        ProcessStart.here(Path("model"), options[0], replica_gpus(options)[1]).environment["CUDA_VISIBLE_DEVICES"]
        == names[1]
    )
    assert replica_gpus(replica_options(EngineConfig(replicas=2, device="cpu", threads=1))) == [{}, {}]
    with pytest.raises(ConfigError, match="torch sees 3 CUDA devices; take 3 replicas"):
        replica_options(EngineConfig(replicas=4))


@pytest.mark.parametrize("seen, names", [(None, ["0,1", "2,3"]), ("7, 5,3,1", ["7,5", "3,1"])])
def test_each_replica_of_several_ranks_sees_as_many_cards(monkeypatch, seen, names):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert [
        each["CUDA_VISIBLE_DEVICES"]
        for each in replica_gpus(replica_options(EngineConfig(replicas=2, tensor_parallel=2)))
    ] == names
    with pytest.raises(ConfigError, match="torch sees 5 CUDA devices, where each replica takes 2; take 2 replicas"):
        replica_options(EngineConfig(replicas=3, tensor_parallel=2))


@pytest.mark.whole
def test_replicas_of_two_ranks(one, tiny):
    """As `sgl models` advises where a card is too small. The death of a rank is an error of its replica's sequences."""
    with Engine(tiny, **OPTIONS, replicas=2, tensor_parallel=2) as engine:
        same(walk(engine, 1), walk(one, 1))
        pids = engine.info()["rank_pids"]
        assert len(set(pids)) == 4 and engine.info()["pids"] == pids[::2]
        sequences = [engine.open() for _ in range(4)]
        for sequence in sequences:
            sequence.extend([5, 6, 7])
        running = [sequence.generate(LONG) for sequence in sequences]
        os.kill(pids[3], signal.SIGKILL)
        assert sorted(isinstance(future.exception(60), EngineDied) for future in running) == [False, False, True, True]
    await_true(lambda: not any(map(alive, pids)))


def test_a_text_s_numbers_are_those_of_its_beginnings():
    rng, ours, plain = random.Random(1), HashedTokenBlocks("a"), np.empty(0, np.int32)
    for _ in range(60):
        added, drop = np.array([rng.randrange(9) for _ in range(rng.randrange(50))], np.int32), rng.randrange(40)
        plain = np.concatenate([plain[: max(0, len(plain) - drop)], added])
        ours.extend(added, drop)
        assert ours.keys == HashedTokenBlocks("a", plain).keys and len(ours.keys) == len(plain) // BLOCK
    assert not set(ours.keys) & set(HashedTokenBlocks("b", plain).keys)


def test_a_shadow_keeps_beginnings_longest():
    shadow = ReplicaCacheEstimate(4 * BLOCK)
    one, other = text((1, 3 * BLOCK)).keys, text((2, 2 * BLOCK)).keys
    shadow.add(one)
    assert shadow.matched(one) == 3 * BLOCK and shadow.matched(other) == 0
    shadow.add(other)
    assert shadow.matched(other) == 2 * BLOCK and shadow.matched(one) == 2 * BLOCK  # the end of the other one went


def test_equals_take_turns_and_prefixes_draw_until_the_others_weigh_more():
    router, up = ReplicaRouter([100_000] * 3), [True] * 3
    assert [router.choose(text((seed, 10)).keys, 10, up)[0] for seed in range(3)] == [0, 1, 2]
    shared = text((9, 20 * BLOCK))
    home, missing = router.choose(shared.keys, 20 * BLOCK, up)
    assert missing == 20 * BLOCK
    router.began(home)
    router.ended(home, missing)
    followers = []
    for seed in range(40):
        each = text((9, 20 * BLOCK), (100 + seed, 5))
        place, missing = router.choose(each.keys, len(each.tokens), up)
        router.began(place)
        followers.append((place, missing))
    assert followers[0] == (home, 5)
    drawn = next(index for index, (place, _) in enumerate(followers) if place != home)
    assert abs(drawn - UNCACHED * 20 * BLOCK / (RUNNING + 5)) <= 2
    assert {place for place, _ in followers} == {0, 1, 2}


@pytest.mark.parametrize("replicas", [2, 4])
def test_groups_that_share_a_prefix_stay_together_and_work_is_even(replicas):
    """Programs of 16 groups, all at once in any order: a prefix is computed twice hardly ever,
    and no replica has much more to do than another.
    """
    shared, own, each = 3000, 64, 16 * replicas
    heads, rng = [text((group, shared)) for group in range(16)], random.Random(replicas)
    for _ in range(4):
        router, groups = ReplicaRouter([1_000_000] * replicas), [group for group in range(16) for _ in range(each)]
        rng.shuffle(groups)
        work = [0] * replicas
        for group in groups:
            place, missing = router.choose(heads[group].keys, shared + own, [True] * replicas)
            router.began(place)
            work[place] += missing + RUNNING
        least = 16 * shared + len(groups) * (shared % BLOCK + own + RUNNING)
        assert sum(work) <= 1.08 * least and max(work) <= 1.09 * least / replicas, work


def test_who_is_down_gets_nothing():
    router = ReplicaRouter([1000] * 2)
    assert {router.choose([], 5, [False, True])[0] for _ in range(9)} == {1}
    assert {router.choose([], 500, [False, False])[0] for _ in range(9)} == {0, 1}


@pytest.fixture(scope="module")
def one(tiny):
    with Engine(tiny, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def several(tiny):
    with Engine(tiny, **OPTIONS, replicas=2) as engine:
        yield engine


@pytest.mark.parametrize("seed", range(3))
def test_sequences_write_what_they_write_on_one(one, several, seed):
    for ours, asked in zip(walk(several, seed), walk(one, seed), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(asked), atol=1e-3)


@sgl.function
def branches(s, word):
    s += "A long beginning that all of these programs share, so that it is worth keeping where it is. " * 2 + word
    forks = s.fork(3)
    for fork in forks:
        fork += sgl.gen("x", max_tokens=4, temperature=0)
    forks.join()
    s += forks[0]["x"] + sgl.gen("y", max_tokens=3, temperature=0)


def test_programs_are_shared_out_and_prefixes_kept(one, several):
    words = [{"word": f"word {number}"} for number in range(24)]
    several.flush_cache()
    before, alone = several.stats(), one.stats()
    ours, asked = (branches.run_batch(words, backend=engine, progress_bar=False) for engine in (several, one))
    assert [state.text() for state in ours] == [state.text() for state in asked]
    spent, alone = several.stats() - before, one.stats() - alone
    assert spent.generations == alone.generations == 24 * 4
    assert spent.hit_rate > alone.hit_rate - 0.05
    each = [core.snapshot().generations for core in several._core._cores]
    assert all(count >= 8 for count in each), each


def test_what_it_says_of_itself(one, several):
    info = several.info()
    assert info["replicas"] == 2 and len(set(info["pids"])) == 2
    assert info["kv_tokens"] == 2 * one.info()["kv_tokens"] and info["max_running"] == 16
    with several.trace_steps() as steps:
        for word in ("one", "two"):
            several.generate(word * 30, max_tokens=2)
    assert steps == sorted(steps, key=lambda step: step.began) and len(steps) >= 4
    several.check()
    assert any("replica 1" in str(root) for root in several.cache_tree().roots) and str(several.cache_tree())
    assert several.stats().pages_total == 2 * one.stats().pages_total


def test_sleep_and_abort(several):
    before = several.generate("words", max_tokens=5, temperature=0).token_ids
    assert several.sleep() > 0 and several.asleep
    several.wake()
    assert several.generate("words", max_tokens=5, temperature=0).token_ids == before
    sequence = several.open()
    sequence.abort()  # it is nowhere yet
    sequence.extend([5, 6])
    assert sequence.tokens().tolist() == [5, 6]


def asked_of_each(engine: Engine) -> list[list[int]]:
    """A short text of each replica, as sequences take turns."""
    engine.flush_cache()
    return [list(engine.generate("words of a text", max_tokens=5, temperature=0).token_ids) for _ in range(4)]


@pytest.mark.whole
def test_all_get_other_weights_and_begin_with_them_when_they_are_started_again(tiny, other_weights):
    whole, _ = other_weights
    with Engine(whole, **OPTIONS) as fresh:
        (expected, *_) = asked_of_each(fresh)
    with Engine(tiny, **OPTIONS, replicas=2) as engine:
        before = asked_of_each(engine)
        assert before == before[:1] * 4 != [expected] * 4
        sequences = [engine.open() for _ in range(4)]
        for sequence in sequences:
            sequence.extend([5, 6, 7])
        running = [sequence.generate(LONG) for sequence in sequences]
        assert engine.update_weights(whole) > 0 and engine.model_path == engine.info()["model_path"] == str(whole)
        assert [len(future.result(60).token_ids) for future in running] == [400] * 4
        assert asked_of_each(engine) == [expected] * 4
        os.kill(engine.info()["pids"][0], signal.SIGKILL)
        await_true(lambda: engine.info()["restarts"] == 1, 60)
        assert asked_of_each(engine) == [expected] * 4
        assert engine.update_weights(load_file(tiny / "model.safetensors")) > 0  # tensors, laid where all find them
        assert asked_of_each(engine) == before


@pytest.mark.whole
def test_where_one_cannot_load_them_all_keep_those_of_before(tiny, other_weights, monkeypatch):
    whole, damaged = other_weights
    with Engine(tiny, **OPTIONS, replicas=2) as engine:
        before, core = asked_of_each(engine), engine._core._cores[1]
        with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.down"):
            engine.update_weights(damaged)
        asked = core.ask

        def broken(name: str, *args: object) -> object:
            if (name, *args) == ("update", str(whole)):
                raise OSError("the disk is gone")
            return asked(name, *args)

        monkeypatch.setattr(core, "ask", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            engine.update_weights(whole)
        assert asked_of_each(engine) == before and engine.model_path == str(tiny)
        engine._core._path = Path("nowhere")
        with pytest.raises(RuntimeFailure, match="replicas have different weights now"):
            engine.update_weights(whole)


def test_what_was_closed_before_it_went_anywhere_goes_nowhere(several):
    """It would be computed on a replica where nobody closes it."""
    sequence = several.open()
    sequence.extend([5, 6])
    sequence.close()
    sequence.close()
    (child,) = sequence.fork(1)
    for closed in (sequence, child):
        with pytest.raises(EngineClosed, match="the sequence is closed"):
            closed.generate(SamplingParams(max_tokens=2)).result(60)


@pytest.mark.parametrize(
    "options, why",
    [({"replicas": 0}, "positive"), ({"replicas": 2, "device": "cuda:0"}, "each gets one|torch sees|cuda")],
)
def test_what_it_does_not_do_is_told(tiny, options, why):
    with pytest.raises(ConfigError, match=why):
        Engine(tiny, **OPTIONS | options)


@pytest.mark.whole
def test_the_death_of_one_is_an_error_of_its_own_sequences(tiny):
    with Engine(tiny, **OPTIONS, replicas=2) as engine:
        expected, pids = engine.generate("abc", max_tokens=4, temperature=0).token_ids, engine.info()["pids"]
        sequences = [engine.open() for _ in range(4)]
        for sequence in sequences:
            sequence.extend([5, 6, 7])
        running = [sequence.generate(LONG) for sequence in sequences]
        os.kill(pids[0], signal.SIGKILL)
        ended = [future.exception(60) for future in running]
        assert sorted(isinstance(error, EngineDied) for error in ended) == [False, False, True, True]
        assert engine.up and engine.generate("abc", max_tokens=4, temperature=0).token_ids == expected
        await_true(lambda: engine.info()["restarts"] == 1, 60)
        assert engine.info()["pids"][1] == pids[1] and engine.info()["pids"][0] != pids[0]
        for _ in range(4):
            assert engine.generate("abc", max_tokens=4, temperature=0).token_ids == expected
        last = engine.info()["pids"]
    await_true(lambda: not any(map(alive, last)))


@pytest.mark.whole
def test_a_script_that_forgets_to_close_ends_without_a_word(tiny):
    code = (
        f"import sgl; e = sgl.Engine({str(tiny)!r}, kv_tokens=512, replicas=2, device='cpu', threads=1); "
        "e.generate('hello', max_tokens=2); print(*e.info()['pids'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and not run.stderr, run.stderr
    await_true(lambda: not any(alive(int(pid)) for pid in run.stdout.split()))
