"""Experts in main memory on a GPU: what is brought is right at the sizes of models, and engines
give the texts of those that have all on the device.
"""

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

import expert_checks as checks  # noqa: E402
from checkpoints import write_tokenizer  # noqa: E402
from family_cases import write_family  # noqa: E402
from family_checks import prompt  # noqa: E402

from sgl.runtime import Engine, SamplingParams  # noqa: E402

LENGTHS, NEW = (1, 3, 17, 40, 5, 9, 30, 44, 7, 12), 16


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int16, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "rows, top_k, experts, size",
    [(1, 8, 128, (1536, 2048)), (5, 2, 8, (33, 7)), (8192, 8, 128, (64, 64)), (64, 8, 384, (100, 30))],
)
def test_what_is_chosen_is_brought(
    rows: int, top_k: int, experts: int, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    for padding in (0, 3):
        checks.check_bring(rows, top_k, experts, size, dtype, "cuda", padding)


def texts_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True)
    sequences = [engine.open() for _ in prompts]
    for sequence, tokens in zip(sequences, prompts, strict=True):
        sequence.extend(tokens)
    futures = [sequence.generate(params) for sequence in sequences]
    return [future.result(120).token_ids for future in futures]


@pytest.fixture(params=["qwen3 moe", "qwen2 moe", "gpt-oss", "glm 4.5, groups", "llama 4"])
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = write_family(request.param, tmp_path)
    write_tokenizer(path)
    return path


def test_texts_are_those_of_experts_on_the_device(family: Path) -> None:
    """One by one, a few rows, more than are gathered; cold, from the cache and as graphs;
    all layers or the first ones' on the device.
    """
    prompts = [prompt(320, length, seed=length) for length in LENGTHS]
    options: dict[str, Any] = {"device": "cuda", "dtype": "float32", "kv_tokens": 4096}
    with Engine(family, **options) as engine:
        expected = texts_of(engine, prompts)
        size = _bytes(engine)
    for memory in ("host", size):
        for more in ({}, {"graphs": False, "step_tokens": 16}):
            with Engine(family, expert_memory=memory, **options, **more) as engine:
                told = engine.info()["expert_memory"]
                assert told["host_layers"] and bool(told["device_layers"]) == (memory != "host"), told
                assert {row["executor"] for row in engine.info()["layers"]} == {"fused"}
                for _ in range(3):
                    assert texts_of(engine, prompts) == expected, (memory, more)
                for count in (1, 3):
                    assert texts_of(engine, prompts[:count]) == expected[:count], (memory, more)
                if not more:
                    assert any(engine._core.runner._graphs._captured.values())


def _bytes(engine: Engine) -> int:
    """Of the experts of the first layer that has some."""
    part = next(layer.ffn for layer in engine._core.runner.model.layers if hasattr(layer.ffn, "experts"))
    return sum(product.weight.nbytes for expert in part.experts for product in (expert.gate_up, expert.down))


@pytest.mark.parametrize("weights", ["auto", "int4", "fp8_block"])
def test_kinds_of_weights(weights: str, tmp_path: Path) -> None:
    """One by one the kernels get the same numbers and give the same bits;
    together, the clock says which rows share a step.
    """
    path = write_family("qwen3 moe", tmp_path, hidden_size=128, moe_intermediate_size=64, intermediate_size=128)
    write_tokenizer(path)
    prompts, found = [prompt(320, length, seed=length) for length in LENGTHS], []
    for memory in ("device", "host"):
        with Engine(
            path, device="cuda", dtype="bfloat16", weights=weights, expert_memory=memory, kv_tokens=4096
        ) as engine:
            found.append([texts_of(engine, [tokens])[0] for tokens in prompts])
            found.append(texts_of(engine, prompts))
    assert found[0] == found[2]
    agree = sum(
        a == b for first, other in zip(found[1], found[3], strict=True) for a, b in zip(first, other, strict=True)
    )
    assert agree > 0.5 * len(prompts) * NEW


def test_memory_and_bytes_are_counted(tmp_path: Path) -> None:
    """On the device is one layer's room; a token of a single sequence brings what info() says, graphs or not."""
    path = write_family("qwen3 moe", tmp_path, hidden_size=256, moe_intermediate_size=512, intermediate_size=128)
    write_tokenizer(path)
    held = {}
    for memory in ("device", "host"):
        with Engine(path, device="cuda", dtype="bfloat16", expert_memory=memory, kv_tokens=2048) as engine:
            held[memory], told = engine.info()["memory"]["weights"], engine.info()["expert_memory"]
            if memory == "host":
                texts_of(engine, [prompt(320, 9, seed=1)])
                before = engine.stats()
                texts_of(engine, [prompt(320, 1, seed=2)])
                spent = engine.stats() - before
    # the last step's token may be computed ahead and dropped
    steps = spent.expert_bytes / told["token_bytes"]
    assert steps == int(steps) and NEW <= steps <= NEW + 3
    assert held["device"] - held["host"] == pytest.approx(told["host_bytes"] - told["room_bytes"], rel=0.02)


def test_sleep_and_another_load(tmp_path: Path) -> None:
    path = write_family("gpt-oss", tmp_path)
    write_tokenizer(path)
    prompts = [prompt(320, 7, seed=3), prompt(320, 30, seed=4)]
    with Engine(path, device="cuda", dtype="bfloat16", expert_memory="host", kv_tokens=2048) as engine:
        expected, told = texts_of(engine, prompts[:1]), engine.info()["expert_memory"]
        engine.sleep()
        engine.wake()
        assert texts_of(engine, prompts[:1]) == expected
        engine.update_weights(path)
        assert texts_of(engine, prompts[:1]) == expected
        assert engine.info()["expert_memory"] == told


def test_the_bits_of_a_row_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    path = write_family("qwen3 moe", tmp_path, hidden_size=64, moe_intermediate_size=32)
    write_tokenizer(path)
    prompts = [prompt(320, length, seed=length) for length in (5, 9, 30, 44)]
    with Engine(
        path, device="cuda", dtype="bfloat16", deterministic=True, expert_memory="host", kv_tokens=2048
    ) as engine:
        together = texts_of(engine, prompts)
        assert [texts_of(engine, [tokens])[0] for tokens in prompts] == together
