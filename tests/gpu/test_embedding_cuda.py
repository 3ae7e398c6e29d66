"""Embeddings on a CUDA device: the vectors of the CPU, whatever the steps are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from test_embedding import GREEDY, TEXTS, reference, rows_of

from sgl.runtime import Engine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

KINDS: list[dict[str, Any]] = [
    {},
    {"graphs": False},
    {"run_ahead": False},
    {"attention": "torch_native"},
    {"attention": "triton", "page_size": 16, "step_tokens": 7},
    {"step_tokens": 1},
    {"max_running": 3, "kv_tokens": 250},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_they_are_those_of_transformers(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, family, tokenizer=True)
    options = {"dtype": "float32", "kv_tokens": 4096, "poison_freed": True} | options
    with Engine(path, device="cuda", **options) as engine:
        engine._core.after_step = engine._core.check
        for _ in range(3):  # cold, from kernels that are compiled, among decodes that run as graphs
            beside = engine.open()
            beside.extend(rows_of(engine)[0])
            generated = beside.generate(GREEDY)
            found = engine.embed(TEXTS * 3)
            assert len(generated.result(60).token_ids) == 12
            assert np.allclose(found, np.tile(reference(family, rows_of(engine)), (3, 1)), atol=1e-3, rtol=1e-3)


def test_preempted_between_steps(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "llama", tokenizer=True)
    with Engine(path, device="cuda", dtype="float32", kv_tokens=4096, step_tokens=16) as engine:
        core, dice = engine._core, np.random.default_rng(0)

        def disturb() -> None:
            core.check()
            if core.scheduler.running and dice.random() < 0.3:
                core.scheduler.preempt(core.scheduler.running[0])

        core.after_step = disturb
        texts = [text * 3 for text in TEXTS]
        assert np.allclose(engine.embed(texts), reference("llama", rows_of(engine, texts)), atol=1e-3, rtol=1e-3)
        assert engine.stats().preemptions
