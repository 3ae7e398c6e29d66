"""MLX: its words against their formula number by number, its floats against other formats', and the package itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from readers_rig import NAME, Tensors, claimed, read, read_or_refused
from test_readers_gptq import stream
from torch import Tensor

from sgl.runtime.errors import CheckpointError
from sgl.runtime.quantization.readers import WeightReaders


def affine(seed: int, bits: int) -> tuple[dict[str, Any], Tensors, Tensor]:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    out, group = rng.randint(1, 12), rng.choice([32, 64, 128])
    inputs = group * rng.randint(1, 3)
    codes = torch.randint(0, 2**bits, (out, inputs), generator=generator)
    scales, biases = (
        torch.randn(out, inputs // group, generator=generator).to(rng.choice([torch.bfloat16, torch.float16]))
        for _ in range(2)
    )
    words = torch.tensor([stream(row, bits) for row in codes.tolist()], dtype=torch.int32).view(torch.uint32)
    spread = [part.float().repeat_interleave(group, 1) for part in (scales, biases)]
    return (
        {"group_size": group, "bits": bits, "mode": "affine"},
        {"weight": words, "scales": scales, "biases": biases},
        codes * spread[0] + spread[1],
    )


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("seed", range(4))
def test_whole_numbers(bits: int, seed: int) -> None:
    config, tensors, dense = affine(seed, bits)
    found = read(config, tensors)
    assert torch.equal(found.dense(), dense) and found.levels == (16 if bits <= 4 else 256)
    older = {key: value for key, value in config.items() if key != "mode"}
    assert torch.equal(read(older, {**tensors, "bias": torch.ones(len(dense))}).dense(), dense)


def test_a_module_may_have_bits_of_its_own() -> None:
    config, tensors, dense = affine(1, 6)
    other = {"group_size": 32, "bits": 4, "lm_head": False, NAME: {key: config[key] for key in ("bits", "group_size")}}
    assert torch.equal(read(other, tensors).dense(), dense)


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_floats_are_those_of_other_formats(mode: str) -> None:
    generator = torch.Generator().manual_seed(1)
    filled, group = torch.randint(0, 126, (8, 64), generator=generator).byte(), 16 if mode == "nvfp4" else 32
    inputs = 64 if mode == "mxfp8" else 128
    scales = torch.randint(90, 130, (8, inputs // group), generator=generator).byte() & 127
    known: Tensors = {"weight_packed": filled, "weight_scale": scales}
    if mode == "mxfp8":
        known = {"weight": filled.view(torch.float8_e4m3fn), "weight_scale": scales}
    if mode == "nvfp4":
        known = {
            "weight_packed": filled,
            "weight_scale": scales.view(torch.float8_e4m3fn),
            "weight_global_scale": torch.ones(1),
        }
    config = {"group_size": group, "bits": 8 if mode == "mxfp8" else 4, "mode": mode}
    tensors = {"weight": filled.view(torch.uint32), "scales": scales}
    torch.testing.assert_close(read(config, tensors).dense(), read(None, known).dense(), rtol=0, atol=0, equal_nan=True)
    assert claimed(config, tensors).format.startswith(f"MLX, {'FP8' if mode == 'mxfp8' else mode.upper()}, groups of")


CONFIG, TENSORS, _ = affine(2, 4)


@pytest.mark.parametrize(
    "config, changed, message",
    [
        ({}, {}, r"q_proj.weight \(U32 .* has mode 'affine', bits 4 and group_size None in the configuration"),
        ({"mode": "ternary", **{key: CONFIG[key] for key in ("bits", "group_size")}}, {}, "has mode 'ternary'"),
        ({**CONFIG, NAME: {"bits": 3}}, {}, r"q_proj.scales .* must have shape"),
        (CONFIG, {"scales": torch.ones(1, 7)}, r"q_proj.scales \(F32 \[1, 7\]\) must have shape"),
        (CONFIG, {"biases": torch.ones(1, 7)}, "q_proj.biases .* must have shape"),
        (CONFIG, {"scales": TENSORS["scales"].int()}, "q_proj.scales .* must be F32"),
        (CONFIG, {"more": torch.ones(1)}, "q_proj.more .* is not understood"),
        (CONFIG, {"weight": torch.zeros(2, 2, 2).to(torch.uint32)}, "q_proj.weight .* must be a matrix"),
        ({**CONFIG, "mode": "mxfp4"}, {}, r"q_proj.scales \(BF16 .* must be U8|q_proj.scales \(F16 .* must be U8"),
    ],
)
def test_what_cannot_be_is_refused_by_the_tensor(config: dict[str, Any], changed: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read({"bits": 4, **config}, {**TENSORS, **changed})


def test_damaged_modules_are_read_or_refused() -> None:
    readers = WeightReaders.of(CONFIG, "config.json")
    read_or_refused(random.Random(1), ((readers, TENSORS) for _ in range(200)))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("mode", ["affine", "mxfp4", "nvfp4", "mxfp8"])
def test_what_its_own_package_writes(bits: int, mode: str) -> None:
    mx = pytest.importorskip("mlx.core")
    weight, group = mx.random.normal((24, 256)), {"affine": 64, "nvfp4": 16}.get(mode, 32)
    parts = mx.quantize(weight, group_size=64, bits=bits) if mode == "affine" else mx.quantize(weight, mode=mode)
    dense = (
        mx.dequantize(*parts, group_size=64, bits=bits)
        if mode == "affine"
        else mx.dequantize(*parts, mode=mode, dtype=mx.float32)
    )
    tensors = {name: torch.from_dlpack(part) for name, part in zip(("weight", "scales", "biases"), parts, strict=False)}
    assert torch.equal(
        read({"group_size": group, "bits": bits, "mode": mode}, tensors).dense(), torch.from_dlpack(dense)
    )
