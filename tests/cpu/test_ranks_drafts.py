"""Heads that draft for a target over two ranks: rank 0 has them whole, and the text is that of one rank without."""

from __future__ import annotations

from pathlib import Path

import pytest
from draft_heads import Made, eagle, eagle3, mtp
from ranks_rig import same, walk

from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError
from sgl.runtime.executor.device import choose_device
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loop.config import EngineConfig
from sgl.runtime.loop.draft_side import draft_side

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
TWO = OPTIONS | {"tensor_parallel": 2, "speculation": "auto"}


def check(made: Made) -> None:
    with Engine(made.target, **OPTIONS) as one, Engine(made.target, **TWO, draft=made.draft) as two:
        for seed in range(2):
            same(walk(two, seed), walk(one, seed))
        assert two.stats().drafted_tokens > 0 and two.info()["draft"]["kind"] in ("EAGLE-3", "MTP")


def test_a_head_between_layers(tmp_path: Path) -> None:
    check(eagle3(tmp_path))


def test_the_layer_behind_the_last_one(tmp_path: Path) -> None:
    check(mtp(tmp_path))


@pytest.mark.parametrize("options, why", [({}, "scores by its target's lm_head"), ({"pipeline_parallel": 2, "tensor_parallel": 1}, "lie in other stages")])
def test_heads_that_need_what_lies_elsewhere_are_refused(options: dict[str, int], why: str, tmp_path: Path) -> None:
    made = eagle(tmp_path)
    config = EngineConfig.from_options(TWO | options | {"draft": made.draft}).on("cpu")
    with pytest.raises(ConfigError, match=why):
        draft_side(config, choose_device("cpu", "float32", 1), open_checkpoint(made.target).model, made.target)
