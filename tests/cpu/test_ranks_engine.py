"""An engine of two ranks: the texts of one, whatever its sequences do; a rank
that ends, or is silent, ends it aloud.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_tokenizer
from ranks_adapters import refuses_bad_adapters, with_adapters, with_kinds, with_other_weights
from ranks_rig import alive, same, two_tiers, updated, walk
from server_rig import await_true
from states_rig import write_case

import sgl
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, EngineDied

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
RANKS = OPTIONS | {"tensor_parallel": 2}


@pytest.fixture(scope="module")
def one(tiny):
    with Engine(tiny, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(tiny):
    with Engine(tiny, **RANKS) as engine:
        yield engine


@pytest.mark.parametrize("seed", range(4))
def test_sequences_write_what_they_write_on_one(one, two, seed):
    same(walk(two, seed), walk(one, seed))


def test_programs_embeddings_and_log_probabilities(one, two):
    def told(engine):
        made = engine.generate("one two three one", max_tokens=8, temperature=0, logprobs=2)
        return made.token_ids, np.round(np.asarray(engine.embed("a few words")).ravel()[:4], 3).tolist()

    assert told(two) == told(one)


def test_what_it_says_of_itself(one, two):
    info = two.info()
    assert info["tensor_parallel"] == 2 and len(set(info["rank_pids"])) == 2 and info["pid"] == info["rank_pids"][0]
    assert info["parameters"] == one.info()["parameters"] and info["kv_bytes"] == one.info()["kv_bytes"]
    planned, alone = info["memory"], one.info()["memory"]
    assert planned["kv"] == alone["kv"] and planned["weights"] >= 4 * info["parameters"], "of both ranks"
    assert all(row["why"] == "its sums are over ranks" for row in info["layers"] if row["executor"] == "torch")


@pytest.mark.whole
@pytest.mark.parametrize("case", ["lfm2", "qwen 3.5 moe"])
def test_states_are_shared_out(case, tmp_path):
    """In steps that are cut, forks and snapshots, with too few states for all; the plan counts those of both ranks."""
    path, few = (
        write_tokenizer(write_case(case, tmp_path)),
        OPTIONS | {"states": 24, "state_every": 32, "step_tokens": 32, "poison_freed": True},
    )
    with Engine(path, **few) as one, Engine(path, **few, tensor_parallel=2) as two:
        same(walk(two, 1), walk(one, 1))
        assert (two.info()["states"], two.info()["state_bytes"]) == (24, one.info()["state_bytes"]) and two.info()[
            "memory"
        ]["states"] == one.info()["memory"]["states"]
        assert two.sleep() == two.info()["kv_bytes"] + two.info()["state_bytes"], "of both ranks"
        two.wake()
        same(walk(two, 3), walk(one, 3))


@pytest.mark.whole
def test_prefixes_leave_and_come_back(one, tiny):
    two_tiers(one, tiny, {"tensor_parallel": 2})


def test_it_sleeps_and_wakes(two):
    before = two.generate("words", max_tokens=5, temperature=0).token_ids
    assert two.sleep() == two.info()["kv_bytes"], "of both ranks"
    two.wake()
    assert two.generate("words", max_tokens=5, temperature=0).token_ids == before


@pytest.mark.whole
def test_adapters_one_by_one_and_64_in_a_batch(one, two, adapters, tmp_path):
    with_adapters(one, two, adapters[:64])
    refuses_bad_adapters(two, adapters[0], tmp_path)


def test_adapters_that_have_more_than_pairs(one, two, kinds_of_adapters):
    with_kinds(one, two, kinds_of_adapters)


def test_adapters_beside_other_weights(one, two, tiny, other_weights, kinds_of_adapters):
    with_other_weights(one, two, tiny, other_weights[0], kinds_of_adapters)


@pytest.mark.whole
def test_other_weights_and_back(one, two, tiny, other_weights):
    updated(one, two, tiny, other_weights)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options, why",
    [
        ({"tensor_parallel": 0}, "positive whole number"),
        ({"tensor_parallel": 3}, "query heads cannot be shared out among 3 ranks"),
        ({"run_ahead": True}, "run_ahead=True"),
        ({"weights": "int4_gptq", "calibration": ["x"]}, "int4_gptq"),
        ({"load_format": "sharded_state"}, "it is no sharded state"),
        ({"attention": "flashinfer"}, "flashinfer"),
    ],
)
def test_what_it_does_not_do_is_told_and_nothing_is_left(tiny, options, why, monkeypatch):
    """Processes of the other ranks begin before anything is known of the model."""
    mark = f"SGL_TEST_MARK={os.urandom(8).hex()}"
    monkeypatch.setenv(*mark.split("="))
    with pytest.raises(ConfigError, match=why):
        Engine(tiny, **RANKS | options)
    await_true(lambda: not with_environment(mark))


def with_environment(mark: str) -> list[str]:
    """Processes that began with it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_rank_of_torchrun_starts_no_ranks(tiny, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun"):
        Engine(tiny, **RANKS)


@pytest.mark.whole
@pytest.mark.parametrize("number, words", [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "no sign of life")])
def test_a_rank_that_ends_or_is_silent_ends_all_and_they_come_back(tiny, number, words, capfd):
    with Engine(tiny, **RANKS | {"kv_tokens": None, "kv_memory": 4_000_000}, heartbeat=1.5) as engine:
        assert (
            3_900_000 < engine.info()["kv_bytes"] <= 4_000_000 * 1.01
        )  # of both ranks; the page of the padding slot comes on top
        expected, pids = engine.generate("abc", max_tokens=4, temperature=0).token_ids, engine.info()["rank_pids"]
        running = engine.open()
        running.extend([5, 6, 7])
        endless = running.generate(SamplingParams(max_tokens=400, ignore_eos=True))
        began = time.monotonic()
        os.kill(pids[1], number)
        with pytest.raises(EngineDied, match=rf"rank 1 .*{words}"):
            endless.result(30)
            running.generate(SamplingParams(max_tokens=400, ignore_eos=True)).result(30)
        assert time.monotonic() - began < (4 if number == signal.SIGKILL else 8)
        await_true(lambda: not any(map(alive, pids)))
        assert (f"rank 1 (pid {pids[1]}), which is ended:" in capfd.readouterr().err) == (
            number == signal.SIGSTOP
        )  # where everybody is
        await_true(lambda: engine.info()["rank_pids"] != pids and engine._core.up, 60)
        assert engine.generate("abc", max_tokens=4, temperature=0).token_ids == expected
        last = engine.info()["rank_pids"]
    await_true(lambda: not any(map(alive, last)))


SCRIPT = """
import sys, sgl
engine = sgl.Engine(sys.argv[1], dtype="float32", threads=1, kv_tokens=1024, tensor_parallel=2)
print(engine.generate("abc", max_tokens=4, temperature=0).token_ids, *engine.info()["rank_pids"], flush=True)
if len(sys.argv) > 2:
    input()
"""


@pytest.mark.whole
def test_a_script_without_a_guard_starts_it_and_leaves_nothing_behind(tiny, one, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(file), str(tiny)], capture_output=True, text=True, timeout=60, env=environment()
    )
    tokens, _, pids = done.stdout.strip().rpartition("]")[0] + "]", None, done.stdout.rpartition("]")[2].split()
    assert tokens == str(one.generate("abc", max_tokens=4, temperature=0).token_ids), done.stderr
    await_true(lambda: not any(alive(int(pid)) for pid in pids))


@pytest.mark.whole
def test_nobody_outlives_a_killed_owner(tiny, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    owner = subprocess.Popen(
        [sys.executable, str(file), str(tiny), "wait"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    pids = owner.stdout.readline().rpartition("]")[2].split()
    assert len(pids) == 2 and all(alive(int(pid)) for pid in pids)
    owner.kill()
    owner.wait()
    await_true(lambda: not any(alive(int(pid)) for pid in pids))


def environment() -> dict[str, str]:
    root = str(Path(sgl.__file__).parent.parent)
    return os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
