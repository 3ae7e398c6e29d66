"""Windowed layers give pages back on a GPU: texts, by graphs and without, are those of an engine that keeps all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from states_rig import prompt, run  # noqa: E402
from test_scheduler_pressure import FOREVER, some  # noqa: E402
from windows_rig import EVERY, Make, make, paths, quiet, settled, walk  # noqa: E402

from sgl.runtime import Engine  # noqa: E402

__all__ = ["make", "paths"]

SMALL = {"kv_tokens": 1000, "window_tokens": 300}


@pytest.fixture
def on_gpu(make: Make) -> Make:
    return lambda case="gemma3", **options: make(case, **{"device": "cuda"} | options)


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 1},
        {"page_size": 4, "graphs": False},
        {"attention": "triton", "run_ahead": False},
        {"attention": "torch_native"},
    ],
)
@pytest.mark.parametrize("case", EVERY)
def test_texts_are_those_of_a_cold_run_whatever_was_there_before(
    case: str, options: dict[str, Any], on_gpu: Make
) -> None:
    engine, cold = on_gpu(case, window_tokens=400, **options), quiet(on_gpu, case)
    assert engine.info()["window_tokens"] == 400
    shared = prompt(1, 130)
    for cut in [130, 130, 33, 64, 16, 69, 1]:
        tokens = shared[:cut] + prompt(cut, 7)
        cold.flush_cache()
        assert run(engine, tokens, 40).token_ids == run(cold, tokens, 40).token_ids
    stats = engine.stats()
    assert stats.cached_tokens > 150 and stats.window_given_back > 300
    settled(engine)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "bfloat16"}, {"dtype": "bfloat16", "kv_dtype": "fp8"}, {"dtype": "bfloat16", "deterministic": True}],
)
@pytest.mark.parametrize("case", ["gemma3", "mistral", "gpt-oss"])
def test_in_other_types(case: str, options: dict[str, Any], on_gpu: Make) -> None:
    """Cut into the same steps, the same kernels see the same numbers."""
    engine, cold = on_gpu(case, **SMALL, **options), on_gpu(case, kv_tokens=1000, window_tokens=1000, **options)
    for seed in range(4):
        tokens = prompt(seed, 100)
        for each in (engine, cold):
            each.flush_cache()
        assert run(engine, tokens, 40).token_ids == run(cold, tokens, 40).token_ids
    assert engine.stats().window_given_back


def together(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    return [future.result(FOREVER).token_ids for future in [sequence.generate(some(40)) for sequence in sequences]]


@pytest.mark.parametrize("count", [3, 14, 40])
def test_heads_that_products_of_few_rows_store(count: int, on_gpu: Make) -> None:
    """Weights in few bits: up to 16 rows, the product itself puts keys and values in the windows'
    slots. Rows that end earlier may round another way.
    """
    options: dict[str, Any] = {"dtype": "bfloat16", "weights": "int4", "kv_tokens": 8000}
    engine, cold = on_gpu("mistral", window_tokens=4000, **options), on_gpu("mistral", window_tokens=8000, **options)
    assert all(layer.turns for layer in engine._core.runner.model.execution_plan.few)
    prompts = [prompt(seed, 100) for seed in range(count)]
    pairs = [
        pair
        for ours, theirs in zip(together(engine, prompts), together(cold, prompts), strict=True)
        for pair in zip(ours, theirs, strict=True)
    ]
    assert sum(one == other for one, other in pairs) > 0.6 * len(pairs)
    assert engine.stats().window_given_back and not cold.stats().window_given_back


@pytest.mark.parametrize("page_size", [1, 4])
def test_children_go_on_from_the_parents_window(page_size: int, on_gpu: Make) -> None:
    engine, cold = on_gpu(page_size=page_size, **SMALL), quiet(on_gpu)
    tokens = prompt(8, 161)
    for _ in range(3):  # eager, captured, replayed
        parent = engine.open()
        parent.extend(tokens)
        children = parent.fork(4)
        for index, child in enumerate(children[1:]):
            child.extend(prompt(index, index))
        futures = [each.generate(some(30)) for each in (*children, parent)]
        found = [future.result(FOREVER).token_ids for future in futures]
        tails = [[], *(prompt(index, index) for index in range(3)), []]
        assert found == [run(cold, tokens + tail, 30).token_ids for tail in tails]
        del parent, children, child
    settled(engine)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", ["gemma3", "mistral", "llama 4"])
def test_random_requests_on_a_small_pool(case: str, seed: int, on_gpu: Make) -> None:
    assert walk(on_gpu, case, seed, 60) > 5
