"""An engine whose ranks hold whole experts: the texts of one, also while experts
move; a rank that ends meanwhile ends it aloud.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import edit_json, write_tokenizer
from family_cases import write_family
from ranks_rig import alive, walk
from safetensors.torch import load_file, save_file
from server_rig import await_true
from test_quantized_loading import FORMATS, WEIGHTS

from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError, EngineDied

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
WHOLE = OPTIONS | {"tensor_parallel": 2, "expert_parallel": True, "redundant_experts": 2}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return write_tokenizer(write_family("qwen3 moe", tmp_path_factory.mktemp("mixture"), max_position_embeddings=512))


@pytest.fixture(scope="module")
def one(path):
    with Engine(path, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(path):
    with Engine(path, **WHOLE, rebalance_every=7, heartbeat=None) as engine:
        yield engine


def same(two: Engine, one: Engine, seed: int) -> None:
    for ours, asked in zip(walk(two, seed), walk(one, seed), strict=True):
        np.testing.assert_allclose(np.array(ours), np.array(asked), atol=1e-3)


def test_sequences_write_what_they_write_on_one_while_experts_move(one, two):
    same(two, one, 0)
    assert two.stats().rebalances > 1 and two.stats().moved_experts > 3  # every 7 steps
    over, asked = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            asked.append(two.rebalance_experts())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for seed in (1, 2):
            same(two, one, seed)
    finally:
        over.set()
        thread.join()
    stats = two.stats()
    assert (
        stats.moved_experts > 10
        and stats.rebalances >= len(asked) > 0
        and sum(each["experts"] for each in asked) <= stats.moved_experts
    )
    assert np.array(stats.rank_rows).sum(1).tolist() == np.array([sum(each) for each in stats.expert_counts]).tolist()


def test_it_tells_where_experts_lie_and_how_busy_ranks_are(two):
    two.rebalance_experts()
    info, before = two.info(), two.stats()
    held = list(info["expert_places"].values())
    assert (
        info["expert_parallel"]
        and info["redundant_experts"] == 2
        and info["fixed_experts"] == ""
        and ", ".join(info["expert_places"])
    )
    assert (
        all(len(ranks) == 2 for ranks in held) and info["layers"][0]["why"] == "its experts are stored on several ranks"
    )
    two.generate("one two three", max_tokens=40, temperature=0)
    told, done = two.rebalance_experts(), two.stats()
    assert told["balance_expected"] >= told["balance_before"] and (done - before).rank_rows != before.rank_rows
    assert 0.5 <= (done - before).rank_balance <= 1 and done.rebalanced["balance_before"] <= 1


def test_it_is_for_whole_experts_only(one):
    with pytest.raises(ConfigError, match="expert_parallel=True"):
        one.rebalance_experts()
    assert "expert_places" not in one.info() and one.stats().rank_rows == []


def test_it_sleeps_wakes_and_moves_experts_meanwhile(one, two):
    before = two.generate("words", max_tokens=5, temperature=0).token_ids
    two.sleep()
    two.rebalance_experts()
    two.wake()
    assert (
        two.generate("words", max_tokens=5, temperature=0).token_ids
        == before
        == one.generate("words", max_tokens=5, temperature=0).token_ids
    )


@pytest.mark.whole
def test_a_rank_killed_while_experts_move_ends_all_and_they_come_back(one, two):
    pids, found = two.info()["rank_pids"], []

    def ask() -> None:
        try:
            two.rebalance_experts()
        except EngineDied as error:
            found.append(error)

    for _ in range(9):  # until there are experts to move
        same(two, one, 5)
        os.kill(pids[1], signal.SIGSTOP)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(0.7)
        if thread.is_alive():
            break
        os.kill(pids[1], signal.SIGCONT)
    os.kill(pids[1], signal.SIGKILL)
    thread.join(30)
    assert "killed by SIGKILL" in str(found[0])
    await_true(lambda: not any(map(alive, pids)))
    await_true(lambda: two.info()["rank_pids"] != pids and two._core.up, 120)
    same(two, one, 5)


@pytest.mark.whole
def test_experts_that_come_in_several_forms_with_other_weights_stay_where_they_are(tmp_path):
    mixed = write_tokenizer(
        write_family("qwen3 moe", tmp_path / "plain", max_position_embeddings=512, moe_intermediate_size=64)
    )
    few = experts_in_few_bits(mixed, tmp_path / "few", plain=".experts.3.")
    with Engine(mixed, **WHOLE) as two:
        assert two.info()["fixed_experts"] == ""
        for place, fixed in ((few, "0-3"), (mixed, "")):
            two.update_weights(place)
            assert two.info()["fixed_experts"] == fixed
            two.generate("one two three " * 3, max_tokens=20, temperature=0, ignore_eos=True)
            assert (two.rebalance_experts()["experts"] > 0) == (fixed == "")


def experts_in_few_bits(path: Path, into: Path, plain: str) -> Path:
    """A checkpoint whose experts come in eight bits, but for those whose names have `plain`."""
    shutil.copytree(path, into)
    method, writer = FORMATS["int8"]
    edit_json(into / "config.json", quantization_config=method)
    tensors, generator = load_file(into / WEIGHTS), torch.Generator().manual_seed(1)
    for name in [name for name in tensors if ".experts." in name and plain not in name]:
        stored, _ = writer(tensors.pop(name), generator)
        tensors |= {name.removesuffix("weight") + suffix: tensor.contiguous() for suffix, tensor in stored.items()}
    save_file(tensors, into / WEIGHTS)
    return into
