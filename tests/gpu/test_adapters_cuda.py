"""Adapters on a GPU: kernels and graphs against the law, cold ones that wait, sleep and wake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint

from sgl.runtime import Engine, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
transformers = pytest.importorskip("transformers")
peft_adapters = pytest.importorskip("peft_adapters")
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
OWNERS = [None, "0", "1", "2", "0", None, "3", "3", "2", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, Path]]:
    path = tmp_path_factory.mktemp("adapters")
    base = write_checkpoint(path / "base", tokenizer=True, head_dim=64, num_hidden_layers=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for i in range(4):
        peft_adapters.make_adapter(model, path / str(i), seed=i, r=8 + 8 * (i % 2))
    return base, {str(i): path / str(i) for i in range(4)}


def texts(engine: Engine) -> list[list[int]]:
    sequences = [engine.open(adapter=owner) for owner in OWNERS]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(30 + i, 50 + i)))
    return [future.result(60).token_ids for future in [sequence.generate(GREEDY) for sequence in sequences]]


@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"attention": "triton"}, {"deterministic": True}])
def test_texts_are_those_of_the_cpu_whatever_lies_in_the_slots(made, options):
    base, folders = made
    with Engine(base, device="cpu", dtype="float32", threads=1, kv_tokens=4096, adapters=folders) as engine:
        expected = texts(engine)
    chosen: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "adapters": folders} | options
    for slots in (4, 2):
        with Engine(base, device="cuda", adapter_slots=slots, **chosen) as engine:
            assert engine.info()["adapters"]["executor"] == "fused"
            for _ in range(20):  # graphs are captured when a size comes back
                assert texts(engine) == expected
            engine.sleep()
            engine.wake()
            assert texts(engine) == expected
            assert engine.stats().adapters["slots_held"] == 0


def test_without_slots_an_adapter_is_refused(made):
    base, folders = made
    with Engine(base, device="cuda", kv_tokens=1024) as engine, pytest.raises(ValueError, match="adapter_slots"):
        engine.adapters.load("0", folders["0"])
