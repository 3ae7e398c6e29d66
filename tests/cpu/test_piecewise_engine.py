"""The GPU's runner on the CPU: its kernels interpreted, its graphs functions; the engine's tokens stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from gpu_runner import pretend

from sgl import grammars
from sgl.runtime import Engine, SamplingParams


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)


def found(path: Any) -> tuple[list[Any], list[float], Any]:
    """Jumps, forks, scores and short prompts beside running decodes; and the sizes of mixed steps, how often."""
    options = {"kv_tokens": 2048, "max_running": 8, "step_tokens": 24, "run_ahead": True, "poison_freed": True}
    with Engine(path, device="cpu", dtype="float32", threads=1, **options) as engine:
        engine._core.after_step = engine._core.check
        grammar = grammars.compile_regex("""\\{"name": "[a-z]{2,3}", "age": [0-9]\\}""", engine.vocabulary)
        bound = engine.generate(["a", "bc", "The quick"], SamplingParams(max_tokens=24, temperature=0), grammar=grammar)
        assert sum(done.forced_tokens for done in bound) > 10
        sequence = engine.open()
        sequence.extend(np.arange(5, 35))
        children = sequence.fork(3)
        for index, child in enumerate(children):
            child.extend(np.arange(50, 52 + index))
        futures = [child.generate(SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)) for child in children]
        scores = sequence.score([[7, 8], [7, 9, 10], [11]]).result(60)
        texts = [done.token_ids for done in bound] + [future.result(60).token_ids for future in futures]
        mixed = getattr(engine._core.runner, "_mixed", None)
        return texts, [p for row in scores for p, _ in row], mixed and mixed._runs


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_engine_that_runs_mixed_steps_in_pieces(family: str, tmp_path, request) -> None:
    if family == "llama":
        path = write_checkpoint(tmp_path, tokenizer=True, num_hidden_layers=2)
    else:
        path = write_tokenizer(write_family(family, tmp_path, num_hidden_layers=2, sliding_window_pattern=2))
    texts, scores, _ = found(path)
    request.getfixturevalue("as_on_a_gpu")
    texts_in_pieces, scores_in_pieces, runs = found(path)
    assert texts_in_pieces == texts
    assert np.allclose(scores_in_pieces, scores, atol=1e-4)
    assert sum(runs.values()) > 5 and max(runs.values()) > 1
