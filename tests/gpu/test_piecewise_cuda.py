"""Mixed steps as captured pieces against the whole decoder on torch's attention, and inside the engine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from part_models import BY_LAW, MIXER_BY_LAW, MODELS, UNCUT
from test_models import VARIANTS

from sgl import grammars
from sgl.runtime import Engine, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
needs_flashinfer = pytest.mark.skipif(importlib.util.find_spec("flashinfer") is None, reason="needs flashinfer")
WIDE = {"head_dim": 64, "num_hidden_layers": 2}  # flashinfer has kernels for it


def run(path: Any, **options: Any) -> Any:
    """Random steps of up to 190 tokens on a stream of their own; every size that came twice was captured."""
    import piecewise_checks as checks

    from sgl.runtime.executor.cuda_graphs import CudaGraphPool

    made = []

    def graph_for(piece: Any) -> Any:
        made.append(piece)
        return pool.graph_for(piece)

    with torch.cuda.stream(torch.cuda.Stream()):
        pool = CudaGraphPool()
        pair = checks.check_random_steps(path, "cuda", 60, most=60, sequences=3, graph_for=graph_for, **options)
    runs = pair.mixed.pieces._runs
    assert len(made) == len(pair.mixed.model.layers) * sum(count > 1 for count in runs.values()) > 6, runs


@pytest.mark.parametrize("variant", ["llama biases", "qwen3"])
def test_mixed_steps_equal_whole_ones(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    run(write_checkpoint(tmp_path, family, **overrides | WIDE), attention="triton", bound=5e-5)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - BY_LAW - MIXER_BY_LAW.keys() - set(UNCUT)))
def test_mixed_steps_of_other_parts_equal_whole_ones(name: str) -> None:
    run(MODELS[name], attention="triton", bound=1e-4)


@pytest.mark.parametrize("attention", ["triton", pytest.param("flashinfer", marks=needs_flashinfer)])
def test_in_half_precision(attention: str, tmp_path: Path) -> None:
    run(write_checkpoint(tmp_path, **WIDE), attention=attention, dtype=torch.bfloat16, bound=0.05)


def test_with_fp8_weights(tmp_path: Path) -> None:
    """Few rows and many take different kernels, as many as there are rows with padding."""
    from sgl.runtime.quantization import transform_for

    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with float8")
    transform = transform_for("fp8", False, torch.device("cuda"))
    run(write_checkpoint(tmp_path, **WIDE), attention="triton", dtype=torch.bfloat16, bound=0.15, transform=transform)


def test_an_engine_runs_its_mixed_steps_in_pieces(tmp_path: Path) -> None:
    """Jumps, forks, scores and short prompts beside running decodes: the tokens of an engine without graphs."""
    path = write_checkpoint(tmp_path, tokenizer=True)

    def found(graphs: bool) -> tuple[list[Any], list[Any]]:
        with Engine(path, device="cuda", dtype="float32", kv_tokens=4096, graphs=graphs, poison_freed=True) as engine:
            engine._core.after_step = engine._core.check
            grammar = grammars.compile_regex(
                """\\{"name": "[a-z]{2,5}", "age": [0-9]{2}, "city": "[a-z]{2,4}"\\}""", engine.vocabulary
            )
            params = SamplingParams(max_tokens=40, temperature=0)
            bound = [engine.generate(["a", "bc", "The quick"], params, grammar=grammar) for _ in range(3)]
            forced = sum(done.forced_tokens for batch in bound for done in batch)
            assert forced > 20
            sequence = engine.open()
            sequence.extend(np.arange(5, 45))
            children = sequence.fork(4)
            for index, child in enumerate(children):
                child.extend(np.arange(50, 52 + index))
            futures = [
                child.generate(SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)) for child in children
            ]
            scores = sequence.score([[7, 8], [7, 9, 10], [11]]).result(60)
            texts = [done.token_ids for batch in bound for done in batch] + [f.result(60).token_ids for f in futures]
            mixed = engine._core.runner._mixed
            assert (mixed is not None) == graphs
            if mixed is not None:
                assert any(count > 1 for count in mixed._runs.values())
            return texts, [p for row in scores for p, _ in row]

    (texts, scores), (plain, plain_scores) = found(True), found(False)
    assert texts == plain
    assert np.allclose(scores, plain_scores, atol=1e-4)
