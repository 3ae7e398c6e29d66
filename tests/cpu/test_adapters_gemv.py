"""Steps of one row with an adapter, by the runner of a GPU: the kernels of a single
row, interpreted, add what the adapter does.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_tokenizer
from family_cases import write_family
from layer_checks import lay_plain
from plain_adapters import write_adapter
from test_adapters_extras_gpu import opened
from test_adapters_triton import Asked

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.build import build_engine
from sgl.runtime.executor import warmup
from sgl.runtime.kernels.launch import compile_ahead
from sgl.runtime.models.gpu.gemv_layers import FullyFusedLayer, GemvLayer

pretend = pytest.importorskip("gpu_runner").pretend
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, tests/gpu does the same")
fused = pytest.importorskip("sgl.runtime.adapters.gpu_adapter_products")
one_row = pytest.importorskip("sgl.runtime.kernels.gemv.gemv")
ASKED = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True, logprobs=True)
OWNERS: list[str | None] = ["0", None, "1", "2"]
CASES: dict[
    str, tuple[str, Any, dict[str, Any]]
] = {  # modules of the second adapter, the layers of one row, and keys of the model
    "llama": (r"(q_proj|down_proj)$", FullyFusedLayer, {"num_hidden_layers": 2}),
    "qwen3": (r"(k_proj|v_proj)$", FullyFusedLayer, {"num_hidden_layers": 2}),
    "phi3": (r"gate_up_proj$", FullyFusedLayer, {"num_hidden_layers": 2}),
    "gpt_neox": (r"query_key_value$", GemvLayer, {"num_hidden_layers": 2}),
    "lfm2": (r"(in_proj|w2)$", FullyFusedLayer, {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
}
ALL = r"(_proj|query_key_value|attention\.dense|dense_h_to_4h|dense_4h_to_h|w1|w2|w3)$"


def told(engine: Engine, owners: list[str | None] = OWNERS) -> list[tuple[list[int], list[float]]]:
    """One text after the other."""
    found = []
    for owner in owners:
        sequence = engine.open(adapter=owner)
        sequence.extend(list(range(30, 36)))
        made = sequence.generate(ASKED).result(60)
        found.append((made.token_ids, [score for score, _ in made.logprobs]))
        sequence.close()
    return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Engines from here on run as on a GPU, also single rows; by whom products of
    single rows with an adapter were computed.
    """
    counts: Counter[str] = Counter()

    def counting(name: str) -> None:
        call = getattr(fused.GpuAdapterProducts, name)

        def counted(self: Any, *args: Any) -> Any:
            counts[name] += any(len(arg) == 1 for arg in args if isinstance(arg, torch.Tensor))
            return call(self, *args)

        monkeypatch.setattr(fused.GpuAdapterProducts, name, counted)

    pretend(monkeypatch)
    monkeypatch.setattr(one_row, "supports", lambda x: len(x) == 1)
    monkeypatch.setattr(one_row, "best_launch", lambda *shape: one_row.GemvLaunch(16, 64, 1))
    load = build_engine.load_model

    def as_on_a_gpu(*args: Any, **keys: Any) -> Any:
        model = load(*args, **keys)
        lay_plain(model)
        return model

    monkeypatch.setattr(build_engine, "load_model", as_on_a_gpu)
    for name in ("product", "added_to", "pair_of_row"):
        counting(name)
    return counts


def made(case: str, path: Path) -> tuple[Path, dict[str, Path]]:
    """Adapters of all modules, of some, and with DoRA."""
    base = write_tokenizer(write_family(case, path / "base", **CASES[case][2]))
    kinds: dict[str, dict[str, Any]] = {
        "0": {"modules": ALL},
        "1": {"modules": CASES[case][0], "rank": 8},
        "2": {"modules": ALL, "dora": True},
    }
    return base, {name: write_adapter(base, path / name, int(name), **keys) for name, keys in kinds.items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", [case for case in CASES if case != "llama"])  # qwen3 is the same with norms of heads
def test_texts_are_those_of_the_cpu(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base, folders = made(case, tmp_path)
    options: dict[str, Any] = {"adapters": folders, "adapter_slots": {8: 2}}
    with opened(base, **options) as engine:
        expected = told(engine)
    counts = request.getfixturevalue("counted")
    with opened(base, **options) as engine:
        found = told(engine)
        adapted_model = engine._core.adapters.adapted_model
        assert engine.info()["adapters"]["one_row"]
        plain, special = (adapted_model._model(more, False).execution_plan.alone for more in (False, True))
        assert all(isinstance(layer, CASES[case][1]) for layer in plain) and not any(
            isinstance(layer, FullyFusedLayer | GemvLayer) for layer in special
        )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0] == theirs[0] and ours[1] == pytest.approx(theirs[1], abs=1e-3)
    assert len({tuple(tokens) for tokens, _ in found}) > 2
    assert counts["pair_of_row"] > 0 and counts["pair_of_row"] % len(plain) == 0, counts


def test_without_it_products_are_added_to(
    tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, folders = made("llama", tmp_path)
    monkeypatch.setattr(fused.gemv_lora, "ON", False)
    with opened(base, adapters={"0": folders["0"]}, adapter_slots={8: 2}) as engine:
        told(engine, ["0"])
    assert not counted["pair_of_row"] and counted["product"]


def test_what_single_rows_launch_is_compiled_before_there_is_an_adapter(
    tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode steps, and prompts of a token."""
    base, _ = made("qwen3", tmp_path)
    monkeypatch.setattr(compile_ahead, "KernelCompileJobs", lambda device, threads: Asked())
    with opened(base, adapter_slots={8: 2}) as engine:
        runner: Any = engine._core.runner

        def asked(adapters: int) -> set[Any]:
            found = Asked()
            with compile_ahead.compiling(found), warmup._slots_by_number(runner):
                for work in (warmup.dummy_sequences(1, 9, 10, adapters), warmup.dummy_sequences(1, 0, 1, adapters)):
                    runner.forward(work)
            return found.kinds

        before = engine._core.call(lambda: warmup.compile_all(runner, lambda: None)).kinds
        plain, adapted = (engine._core.call(lambda count=count: asked(count)) for count in (0, 1))
        ours = {kind for kind in adapted - plain if "gemv" in kind[0]}
        assert {kind[1] for kind in ours} == {
            "place",
            "shrink",
            "linear",
            "gate_up",
            "normed_heads",
        } and adapted <= before
        assert not any("pairs" in dict(kind[2:]) for kind in plain)
