"""Adapters with windows and guesses, and adapters with states, on the GPU's runner, on the
CPU: the texts are those of an engine on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_tokenizer
from draft_rig import Told, speculation
from gpu_runner import pretend
from peft_adapters import make_adapter
from states_rig import prompt, write_case
from test_scheduler_pressure import FOREVER, some
from windows_rig import Make, make, paths, settled

from sgl.runtime import Engine

__all__ = ["make", "paths"]
PROMPTS = {"a": prompt(1, 30), "b": prompt(2, 25), None: prompt(3, 28)}


def opened(engine: Engine, name: str | None) -> Any:
    sequence = engine.open(adapter=name)
    sequence.extend(PROMPTS[name])
    return sequence


def folders_of(path: Path, into: Path, **keys: Any) -> dict[str, Path]:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for seed, name in enumerate("ab"):
        make_adapter(model, into / name, seed=seed, r=4, **keys)
    return {name: into / name for name in "ab"}


def texts(engine: Engine) -> dict[str | None, list[int]]:
    futures = {name: opened(engine, name).generate(some(8)) for name in PROMPTS}
    return {name: future.result(4 * FOREVER).token_ids for name, future in futures.items()}  # interpreted kernels


def static_with_adapters(engine: Engine) -> bool:
    assert engine.info()["adapters"]["executor"] == "fused"
    return any(blocks for _, blocks in engine._core.runner._static)


@pytest.mark.whole
def test_windows_and_guesses(make: Make, paths: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"adapters": folders_of(paths("gemma3"), tmp_path), "adapter_slots": 4}
    wanted = texts(make(window_tokens=4096, **options))
    assert len({tuple(tokens) for tokens in wanted.values()}) == 3
    pretend(monkeypatch)
    engine = make(
        kv_tokens=400,
        window_tokens=160,
        step_tokens=24,
        max_running=4,
        run_ahead=True,
        speculation={"control": False},
        **options,
    )
    speculation(engine, Told("mixed", {tuple(PROMPTS[name]): tokens for name, tokens in wanted.items()}))
    assert texts(engine) == wanted
    assert engine.info()["window_tokens"] and engine.stats().window_given_back and engine.stats().accepted_tokens
    assert static_with_adapters(engine)
    settled(engine)


@pytest.mark.whole
def test_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tokenizer(write_case("lfm2", tmp_path / "model"))
    options: dict[str, Any] = {
        "adapters": folders_of(path, tmp_path, target_modules=["q_proj", "w1", "w2"]),
        "adapter_slots": 4,
        "device": "cpu",
        "dtype": "float32",
    }
    options |= {"threads": 1, "kv_tokens": 512, "max_running": 4}
    with Engine(path, **options) as cold:
        wanted = texts(cold)
    assert len({tuple(tokens) for tokens in wanted.values()}) == 3
    pretend(monkeypatch)
    with Engine(path, run_ahead=True, **options) as engine:
        assert texts(engine) == wanted and static_with_adapters(engine)
