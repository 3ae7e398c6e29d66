"""The GPU's runner on the CPU: its kernels interpreted, its graphs functions; the engine's tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import piecewise_checks as checks
from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family

from sgl import grammars
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.attention.torch_native import TorchNativeAttention
from sgl.runtime.executor import cuda_runner
from sgl.runtime.loop import assemble, kv_pool
from sgl.runtime.models import decoder


class Attention(TorchNativeAttention):
    """torch's, which can attend from the pool into a given place."""

    capturable = True

    def attend_into(self, out: torch.Tensor, q: torch.Tensor, layer: int, batch: Any, sinks: torch.Tensor | None = None) -> None:
        asked = SimpleNamespace(scale=self.shape.scale, softcap=self.shape.softcap, window=self.shape.windows[layer])
        checks.attend_pool(out, q, *self.stored(layer), asked, batch, sinks)


class Graphs:
    """A captured graph is what it was captured from; it writes its result where the first run left it."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def capture(self, compute: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        result = compute()
        return SimpleNamespace(replay=lambda: result.copy_(compute())), result

    def replay_of(self, compute: Callable[[], None]) -> Callable[[], None]:
        return compute


def runner(model: Any, attention: Any, config: Any, choice: Any, context: int, states: Any, windows: Any) -> cuda_runner.CudaRunner:
    assert windows is None
    return cuda_runner.CudaRunner(
        model, attention, choice.device, context=context, page_size=config.page_size, max_running=config.max_running, memory=states
    )


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = SimpleNamespace(wait_stream=lambda stream: None, synchronize=lambda: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: idle)
    monkeypatch.setattr(cuda_runner.CudaRunner, "on_device", lambda self: torch.inference_mode())
    monkeypatch.setattr(cuda_runner, "GraphPool", Graphs)
    monkeypatch.setattr(decoder, "_can_fuse", lambda device: True)
    monkeypatch.setattr(assemble, "make_runner", runner)
    monkeypatch.setattr(kv_pool, "windows_refused", lambda *of: "pages of windows are given back on a CPU only")
    monkeypatch.setattr(assemble, "_attention", lambda config, pool, layout, context, dtype: Attention(pool, layout.groups[0]))


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
