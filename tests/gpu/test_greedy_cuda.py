"""Greedy text in float32 on a GPU equals transformers', whatever the steps are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from test_models import VARIANTS, prompt
from test_models_greedy import STEPS, reference_text

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.loading import load_config
from sgl.runtime.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

OPTIONS: list[dict[str, Any]] = [
    {},
    {"attention": "torch_native"},
    {"page_size": 16, "step_tokens": 16, "graphs": False},
]


@pytest.mark.parametrize("variant", ["llama", "rope yarn", "mistral sliding", "qwen2 tied, late layers slide", "qwen3"])
def test_greedy_text_equals_transformers(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    prompts = [prompt(length, seed=length) for length in (1, 3, 17, 40, 90, 64)]
    path = write_checkpoint(tmp_path, family, tokenizer=True, **overrides)
    hidden = list(range(Tokenizer.load(path).vocab_size, load_config(path).vocab_size))  # no token's columns
    expected = [reference_text(family, tokens, hidden, **overrides) for tokens in prompts]
    params = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True)
    for options in OPTIONS:
        with Engine(path, device="cuda", dtype="float32", kv_tokens=2048, **options) as engine:
            for _ in range(2):  # cold and eager, then from the cache and as graphs
                sequences = [engine.open() for _ in prompts]
                for sequence, tokens in zip(sequences, prompts, strict=True):
                    sequence.extend(tokens)
                futures = [sequence.generate(params) for sequence in sequences]
                assert [future.result(60).token_ids for future in futures] == expected
