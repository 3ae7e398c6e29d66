"""What is compiled and captured before anybody waits: nobody waits for it then, and no token changes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from plain_adapters import write_adapter

from sgl.runtime import Engine, SamplingParams

pytestmark = pytest.mark.rehearsed


def rehearsed(engine: Engine) -> Any:
    """The engine's runner, once nothing is left to be captured."""
    runner: Any = engine._core.runner
    end = time.monotonic() + 60
    while runner._ahead is not None:
        assert time.monotonic() < end, "it never ends"
        time.sleep(0.01)
    return runner


@pytest.mark.parametrize(
    "options", [{}, {"page_size": 16}, {"graphs": False}, {"weights": "fp8"}, {"attention": "triton"}], ids=str
)
def test_nobody_waits_and_no_token_changes(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True, hidden_size=256, intermediate_size=512)
    prompts = ["a", "The quick brown fox", "b " * 60, "c", "d", "e"]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    chosen = {
        "device": "cuda",
        "dtype": "bfloat16",
        "kv_tokens": 4000,
        "max_running": 16,
        "poison_freed": True,
    } | options

    def found(engine: Engine) -> list[list[int]]:
        engine._core.after_step = engine._core.check
        alone = [engine.generate(prompt, params).token_ids for prompt in prompts[:3]]
        return alone + [done.token_ids for done in engine.generate(prompts, params)]

    with Engine(path, **chosen) as engine:
        runner = rehearsed(engine)
        if runner._graphs is not None:
            assert {1, 2, 4, 8, 16} <= {size for size, *_ in runner._graphs._captured}
        assert engine.info()["startup"]["kernels"] > 0
        got, stats = found(engine), engine.stats()
        assert stats.compile_seconds == 0 and stats.capture_seconds == 0
        assert stats.pages_free + stats.pages_cached == stats.pages_total
        engine.sleep()
        engine.wake()
        rehearsed(engine)
        assert found(engine)[:3] == got[:3]
    monkeypatch.setattr("sgl.runtime.build.build_engine.EngineBuilder.warm_up", lambda self, core: None)
    with Engine(path, **chosen) as engine:
        assert found(engine)[:3] == got[:3]
        stats = engine.stats()
        assert stats.capture_seconds > 0 or not engine.info()["graphs"]


def test_a_request_does_not_wait_for_all_captures(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True, num_hidden_layers=8)
    with Engine(path, device="cuda", kv_tokens=2000) as engine:
        runner: Any = engine._core.runner
        engine.generate("a", SamplingParams(max_tokens=2))
        assert runner._ahead is not None
        rehearsed(engine)


def test_nobody_waits_for_the_kernels_of_adapters(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", tokenizer=True, hidden_size=256, intermediate_size=512)
    names = [str(number) for number in range(3)]
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    with Engine(base, device="cuda", dtype="bfloat16", kv_tokens=4000, max_running=16, adapter_slots=3) as engine:
        rehearsed(engine)
        for number, name in enumerate(names):
            engine.adapters.load(name, write_adapter(base, tmp_path / name, number, 8 + 8 * (number % 2)))
        sequences = [engine.open(adapter=owner) for owner in (*names, None, names[0], names[1], *names)]
        for number, sequence in enumerate(sequences):
            sequence.extend([30 + place % 200 for place in range(10 + 40 * number)])
        for count in (1, 2, len(sequences)):
            for future in [sequence.generate(params) for sequence in sequences[:count]]:
                future.result(60)
        assert engine.stats().compile_seconds == 0
