"""The same engine on a CUDA device gives the same texts as on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint

from sgl import grammars
from sgl.runtime import Engine, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPTS = ["The quick brown fox", "The quick", "1 + 1 =", '{"name": "Zoë"'] * 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


def texts(tiny: Path, device: str) -> list[list[int]]:
    with Engine(tiny, device=device, dtype="float32", kv_tokens=4096, step_tokens=16) as engine:
        grammar = grammars.compile_regex("[a-z]{3,9} [0-9]{2}", engine.vocabulary)
        free = engine.generate(PROMPTS, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
        seeded = engine.generate(PROMPTS[0], SamplingParams(max_tokens=20, seed=5, ignore_eos=True))
        bound = engine.generate(PROMPTS, SamplingParams(max_tokens=30, temperature=0), grammar=grammar)
        engine.check()
        return [done.token_ids for done in [*free, seeded, *bound]]


def test_cuda_equals_cpu(tiny):
    assert texts(tiny, "cuda") == texts(tiny, "cpu")
