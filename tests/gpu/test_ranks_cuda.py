"""One model over two cards, by layers' widths and by layers: the texts of one card, whatever its sequences do; a rank
that ends, or is silent, ends it
aloud. And a replica on each card."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from ranks_rig import alive, drawn, walk, written

from sgl import grammars
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import EngineDied, RuntimeFailure

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]

OPTIONS: dict[str, Any] = {"device": "cuda", "dtype": "float32", "kv_tokens": 4096, "max_running": 8}
ON_CPU = OPTIONS | {"device": "cpu", "threads": 1}
RANKS = OPTIONS | {"tensor_parallel": 2}
KINDS: list[dict[str, Any]] = [
    {},
    {"graphs": False},
    {"run_ahead": False},
    {"attention": "triton", "page_size": 16},
    {"deterministic": True},
    {"step_tokens": 16, "max_running": 3},
]
STAGES: list[dict[str, Any]] = [{}, {"graphs": False, "step_tokens": 16}, {"run_ahead": False}]
FAMILIES = ["qwen 3 moe", "deepseek v2 lite", "gpt-oss", "gemma2, low caps"]
ROWS: list[tuple[str, int, dict[str, Any]]] = [
    ("deepseek v2 lite", 2, {}),
    ("deepseek v3", 2, {"graphs": False, "step_tokens": 64}),
    ("glm 4.7 flash", 2, {"run_ahead": False, "page_size": 16, "expert_parallel": True}),
    ("kimi linear", 2, {}),
    ("deepseek v2 lite", 4, {}),
    ("deepseek v3", 4, {"host_kv": "100MB", "kv_tokens": 2048}),
]
PROMPTS = ["The quick brown fox", "The quick", "1 + 1 =", '{"name": "Zoë"'] * 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


def texts(engine: Engine) -> list[list[int]]:
    grammar = grammars.compile_regex("[a-z]{3,9} [0-9]{2}", engine.vocabulary)
    found = []
    for _ in range(2):  # eager, then as graphs
        free = engine.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
        bound = engine.generate(PROMPTS, SamplingParams(max_tokens=30, temperature=0), grammar=grammar)
        found += [done.token_ids for done in [*free, *bound]]
        engine.flush_cache()
    return found


@pytest.fixture(scope="module")
def one(tiny):
    """What a GPU writes too, see test_engine_cuda.py."""
    with Engine(tiny, **ON_CPU) as engine:
        yield engine


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_two_cards_write_what_one_writes(tiny, one, options):
    with Engine(tiny, **RANKS | options) as engine:
        info = engine.info()
        assert info["tensor_parallel"] == 2 and len(set(info["rank_pids"])) == 2
        assert all(row["executor"] == "fused" for row in info["layers"])
        assert texts(engine) == texts(one)


@pytest.mark.parametrize("options", STAGES, ids=str)
def test_two_stages_write_what_one_card_writes(tiny, one, options):
    with Engine(tiny, **OPTIONS, pipeline_parallel=2, **options) as engine:
        info = engine.info()
        assert (
            info["pipeline_parallel"] == 2 and len(info["stages"]) == 2 and info["kv_tokens"] == one.info()["kv_tokens"]
        )
        assert (
            all(row["executor"] == "fused" for row in info["layers"])
            and sum(row["count"] for row in info["layers"]) == 3
        )
        assert texts(engine) == texts(one)
        for ours, asked in zip(walk(engine, 1), walk(one, 1), strict=True):
            np.testing.assert_allclose(np.array(ours), np.array(asked), atol=1e-3)


@pytest.mark.parametrize(
    "spread",
    [{"pipeline_parallel": 2}, {"pipeline_parallel": 3}, {"pipeline_parallel": 2, "tensor_parallel": 2}],
    ids=str,
)
def test_stages_take_prompts_that_are_cut(spread, tmp_path):
    """While they are rehearsed too: of what is cut, only the last part has logits."""
    if torch.cuda.device_count() < spread["pipeline_parallel"] * spread.get("tensor_parallel", 1):
        pytest.skip("needs more CUDA devices")
    path, options = (
        write_checkpoint(tmp_path, tokenizer=True, max_position_embeddings=4096),
        {"kv_tokens": 16384, "max_running": 16},
    )
    rows = [
        [3 + (7 * place + row) % 300 for place in range(length)]
        for row, length in enumerate((900, 1700, 40, 333, 2500))
    ]

    def written(engine: Engine) -> list[list[int]]:
        sequences = [engine.open() for _ in rows]
        for sequence, row in zip(sequences, rows, strict=True):
            sequence.extend(row)
        futures = [each.generate(SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)) for each in sequences]
        found = [future.result(120).token_ids for future in futures]
        for sequence in sequences:
            sequence.close()
        return found

    with Engine(path, **ON_CPU | options) as engine:
        expected, short = written(engine), texts(engine)
    with Engine(path, **OPTIONS | options, **spread) as engine:
        assert written(engine) == expected and texts(engine) == short
        assert all(row["executor"] == "fused" for row in engine.info()["layers"])


@pytest.mark.parametrize("family", FAMILIES)
def test_families_over_two_cards(family, tmp_path):
    path = write_tokenizer(write_family(family, tmp_path))
    with Engine(path, **ON_CPU) as engine:
        expected = texts(engine)
    with Engine(path, **RANKS) as engine:
        assert texts(engine) == expected


@pytest.mark.parametrize("case, cards, options", ROWS, ids=str)
def test_latent_attention_by_rows(case, cards, options, tmp_path):
    """Each card attends for some of a step's rows, of long prompts too, that are cut between cards."""
    if torch.cuda.device_count() < cards:
        pytest.skip("needs more CUDA devices")
    more = {"linear_num_heads": 4} if case == "kimi linear" else {}
    path, room = (
        write_tokenizer(write_family(case, tmp_path, max_position_embeddings=2048, **more)),
        {"kv_tokens": 16384},
    )
    prompts = [*drawn(3, 900), *drawn(2, 333), *drawn(1, 3)]
    with Engine(path, **ON_CPU | room) as one:
        expected, long, walks = texts(one), written(one, prompts, 16, 4), [walk(one, seed) for seed in range(2)]
    with Engine(path, **RANKS | room | {"tensor_parallel": cards, "latent_attention": "rows"} | options) as engine:
        info = engine.info()
        assert info["latent_attention"] == "rows" and all(row["executor"] == "fused" for row in info["layers"])
        assert texts(engine) == expected and written(engine, prompts, 16, 4) == long
        for seed, asked in enumerate(walks):
            for ours, theirs in zip(walk(engine, seed), asked, strict=True):
                np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=2e-3)
        assert engine.sleep() > 0
        engine.wake()
        assert texts(engine) == expected


def test_weights_in_few_bits_over_two_cards(tmp_path):
    path = write_checkpoint(tmp_path, tokenizer=True, hidden_size=256, intermediate_size=512)
    with Engine(path, **RANKS | {"dtype": "bfloat16", "weights": "int4"}) as engine:
        assert len(engine.generate("abc", max_tokens=8, temperature=0, ignore_eos=True).token_ids) == 8


@pytest.fixture(scope="module")
def two(tiny):
    with Engine(tiny, **RANKS) as engine:
        yield engine


@pytest.mark.parametrize("seed", range(4))
def test_sequences_write_what_they_write_on_one(one, two, seed):
    for ours, asked in zip(walk(two, seed), walk(one, seed), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(asked), atol=1e-3)


def test_embeddings_and_log_probabilities(one, two):
    def told(engine):
        made = engine.generate("one two three one", max_tokens=8, temperature=0, logprobs=2)
        return made.token_ids, np.round(np.asarray(engine.embed("a few words")).ravel()[:4], 3).tolist()

    (tokens, means), (asked, expected) = told(two), told(one)
    assert tokens == asked
    np.testing.assert_allclose(means, expected, atol=2e-3)


def test_it_sleeps_and_wakes(two):
    before = two.generate("words", max_tokens=5, temperature=0).token_ids
    assert two.sleep() > 0
    two.wake()
    assert two.generate("words", max_tokens=5, temperature=0).token_ids == before


def await_true(holds, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("number, words", [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGSTOP, "no sign of life")])
def test_a_rank_that_ends_or_is_silent_ends_all_and_they_come_back(tiny, number, words):
    with Engine(tiny, **RANKS, heartbeat=3.0) as engine:
        expected, pids = engine.generate("abc", max_tokens=4, temperature=0).token_ids, engine.info()["rank_pids"]
        running = engine.open()
        running.extend([5, 6, 7])
        endless = running.generate(SamplingParams(max_tokens=400, ignore_eos=True))
        began = time.monotonic()
        os.kill(pids[1], number)
        with pytest.raises(EngineDied, match=rf"rank 1 .*{words}"):
            endless.result(30)
            for _ in range(1000):
                running.generate(SamplingParams(max_tokens=100, ignore_eos=True)).result(30)
        print(f"told after {time.monotonic() - began:.2f} s", flush=True)
        await_true(lambda: not any(map(alive, pids)))
        print(f"all ended after {time.monotonic() - began:.2f} s", flush=True)
        await_true(lambda: engine.info()["rank_pids"] != pids and engine._core.up, 90)
        print(f"up again after {time.monotonic() - began:.2f} s", flush=True)
        assert engine.generate("abc", max_tokens=4, temperature=0).token_ids == expected
        last = engine.info()["rank_pids"]
    await_true(lambda: not any(map(alive, last)))


def test_replicas_write_what_one_writes(tiny, one):
    with Engine(tiny, **OPTIONS, replicas=2) as engine:
        assert texts(engine) == texts(one)
        assert engine.info()["replicas"] == 2


@pytest.mark.parametrize("family", ["qwen 3 moe", "deepseek v2 lite"])
def test_whole_experts_on_two_cards_write_what_one_writes_while_they_move(family, tmp_path):
    """Every few steps, and when asked while text is written; as graphs, which keep the addresses of
    weights and places; the second family has shared experts.
    """
    path = write_tokenizer(write_family(family, tmp_path))
    with Engine(path, **ON_CPU) as engine:
        expected = texts(engine)
    with Engine(path, **RANKS, expert_parallel=True, redundant_experts=2, rebalance_every=7) as engine:
        info = engine.info()
        assert info["expert_parallel"] and info["redundant_experts"] == 2 and info["fixed_experts"] == ""
        assert all(row["executor"] == "fused" for row in info["layers"])
        before = info["expert_places"]
        assert texts(engine) == expected
        written: list[Any] = []
        writer = threading.Thread(target=lambda: written.append(texts(engine)))
        writer.start()
        asked = [engine.rebalance_experts() for _ in range(4)]
        writer.join(60)
        stats = engine.stats()
        print(f"moved {stats.moved_experts} experts in {stats.rebalances} times, {asked[-1]}", flush=True)
        assert (
            written == [expected]
            and stats.moved_experts > 3
            and stats.rebalances >= 4
            and engine.info()["expert_places"] != before
        )
        assert [sum(rows) for rows in stats.rank_rows] == [sum(each) for each in stats.expert_counts if each]
        assert (
            engine.sleep() > 0
            and engine.stats().expert_counts == stats.expert_counts
            and engine.info()["expert_places"] == stats.expert_places
        )
        with pytest.raises(RuntimeFailure, match="wake it before they move"):
            engine.rebalance_experts()
        engine.wake()
        assert texts(engine) == expected
