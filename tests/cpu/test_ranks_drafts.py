"""Heads that draft for a target over two ranks: rank 0 has them whole, and the text is that of one rank without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json
from draft_heads import Made, eagle, eagle3, mtp
from ranks_rig import same, walk
from safetensors.torch import load_file, save_file

from sgl.runtime import Engine
from sgl.runtime.build.build_draft import make_draft_builder
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.calibration.shard_checkpoint import shard
from sgl.runtime.errors import ConfigError
from sgl.runtime.executor.device_choice import choose_device
from sgl.runtime.loading import load_model
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.draft_head_files import EAGLE, open_draft_head
from sgl.runtime.loading.sharded_state import ParallelSizes

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
TWO = OPTIONS | {"tensor_parallel": 2, "speculation": "auto"}


def check(made: Made) -> None:
    with Engine(made.target, **OPTIONS) as one, Engine(made.target, **TWO, draft=made.draft) as two:
        for seed in range(2):
            same(walk(two, seed), walk(one, seed))
        assert two.stats().drafted_tokens > 0 and two.info()["draft"]["kind"] in ("EAGLE", "EAGLE-3", "MTP")


@pytest.mark.whole
def test_a_head_between_layers(tmp_path: Path) -> None:
    check(eagle3(tmp_path))


@pytest.mark.whole
def test_the_layer_behind_the_last_one(tmp_path: Path) -> None:
    check(mtp(tmp_path))


@pytest.mark.whole
def test_a_head_that_scores_as_its_target_does(tmp_path: Path) -> None:
    """By a copy, as the target's matrix lies on both ranks."""
    check(eagle(tmp_path))


@pytest.mark.parametrize("kind", ["untied", "tied", "sharded state", "random"])
def test_the_copy_is_what_the_target_scores_by(kind: str, tmp_path: Path) -> None:
    made, form = eagle(tmp_path), "auto"
    where = made.target
    if kind == "tied":
        edit_json(where / "config.json", tie_word_embeddings=True)
        tensors = load_file(where / "model.safetensors")
        save_file(
            {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"},
            where / "model.safetensors",
            {"format": "pt"},
        )
    target = load_model(where, torch.float32)
    if kind == "sharded state":
        where = tmp_path / "state"
        shard(made.target, where, device="cpu", parts=ParallelSizes(2))
    weights = kind != "random"
    head = (
        open_draft_head(made.draft, EAGLE, target.config, form, weights)
        .scoring(target.config, where, form)
        .load(target, torch.float32, torch.device("cpu"), None if weights else 0)
    )
    x = torch.randn(5, 64)
    assert head.product is not None and torch.allclose(head.product(x), target.head(x), atol=1e-5) == weights


def test_heads_that_need_what_lies_elsewhere_are_refused(tmp_path: Path) -> None:
    made = eagle(tmp_path)
    config = EngineConfig.from_options(TWO | {"pipeline_parallel": 2, "tensor_parallel": 1, "draft": made.draft}).on(
        "cpu"
    )
    with pytest.raises(ConfigError, match="layers of other stages"):
        make_draft_builder(config, choose_device("cpu", "float32", 1), open_checkpoint(made.target).model, made.target)


@pytest.mark.parametrize(
    "change, why", [({"head_bias": True}, "more than a product"), ({"vocab_size": 321}, "not there as floats")]
)
def test_targets_whose_scores_are_no_plain_matrix_are_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    made = eagle(tmp_path)
    target = open_checkpoint(made.target).model
    files = open_draft_head(made.draft, EAGLE, target, "auto", True)
    with pytest.raises(ConfigError, match=why):
        files.scoring(replace(target, **change), made.target, "auto")
