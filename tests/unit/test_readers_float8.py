"""float8 checkpoints, against their formulas written out for each number."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from readers_rig import NAME, Tensors, claimed, headers, read
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.readers import WeightReaders

SIZES = [(8, 32), (128, 128), (136, 200), (120, 264), (257, 129), (3, 300)]
BLOCKS: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def codes(generator: torch.Generator, *shape: int) -> Tensor:
    """Any finite float8."""
    return (torch.rand(shape, generator=generator) * 896 - 448).to(torch.float8_e4m3fn)


def by_blocks(weight: Tensor, scale: Tensor, rows: int, inputs: int) -> Tensor:
    """Each number times its block's."""
    found = weight.float()
    for o in range(weight.shape[0]):
        for block in range(scale.shape[1]):
            found[o, block * inputs : (block + 1) * inputs] *= scale[o // rows, block].float()
    return found


@pytest.mark.parametrize("seed", range(24))
def test_blocks_with_ragged_edges(seed: int) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    (out, inputs), (rows, group) = rng.choice(SIZES), rng.choice([(128, 128), (64, 32), (1, 128), (128, 16)])
    scale = torch.rand(-(-out // rows), -(-inputs // group), generator=generator).to(
        rng.choice([torch.float32, torch.bfloat16])
    )
    tensors = {"weight": codes(generator, out, inputs), "weight_scale_inv": scale, "bias": torch.zeros(out)}
    found = read({**BLOCKS, "weight_block_size": [rows, group]}, tensors)
    assert torch.equal(found.dense(), by_blocks(tensors["weight"], scale, rows, group)) and found.is_float8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_scales_that_are_exponents_keep_their_range(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    exponents = torch.randint(0, 255, (2, 8), generator=generator, dtype=torch.uint8)
    exponents[0, :2] = torch.tensor([0, 254])
    tensors = {"weight": codes(generator, 200, 1000), "weight_scale_inv": exponents.view(dtype)}
    found = read({**BLOCKS, "scale_fmt": "ue8m0"}, tensors)
    expected = by_blocks(
        tensors["weight"], torch.tensor([[2.0 ** (int(e) - 127) for e in row] for row in exponents]), 128, 128
    )
    assert found.scale.dtype == torch.bfloat16 and torch.equal(found.dense(), expected)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (40,), (40, 1), (2,)])
def test_one_scale_and_one_for_each_output(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    weight, scale = codes(generator, 40, 24), torch.rand(shape, generator=generator)
    each = scale.reshape(-1).repeat_interleave(40 // max(1, scale.numel()))
    for tensors in (
        {"weight": weight, "weight_scale": scale, "input_scale": torch.ones(1)},
        {"weight": weight, "weight_scale_inv": scale},
    ):
        assert torch.equal(read({"quant_method": "fp8"}, tensors).dense(), weight.float() * each[:, None])
        assert claimed(None, tensors).unused == tuple(name for name in tensors if name == "input_scale")


def test_the_names_of_the_layouts() -> None:
    weight = codes(torch.Generator().manual_seed(3), 256, 256)
    scales = {
        "FP8, one scale": torch.ones(1),
        "FP8, a scale per output": torch.ones(256, 1),
        "FP8, blocks of 128 x 128": torch.ones(2, 2),
    }
    for name, scale in scales.items():
        assert claimed(None, {"weight": weight, "weight_scale": scale}).format == name
    assert claimed(None, {"weight": weight, "weight_scale": torch.ones(256, 8)}).format == "FP8, groups of 32"


def test_what_is_plain_is_not_claimed() -> None:
    assert WeightReaders.of(BLOCKS, "config.json").claim("lm_head", {}) is None
    assert claimed_or_none({"weight": torch.zeros(2, 2).bfloat16(), "bias": torch.zeros(2)}) is None


def claimed_or_none(tensors: Tensors) -> object:

    return WeightReaders.of(BLOCKS, "config.json").claim(NAME, headers(tensors))


@pytest.mark.parametrize(
    "tensors, message",
    [
        (
            {"weight": torch.zeros(2, 2).to(torch.float8_e5m2), "weight_scale": torch.ones(1)},
            r"q_proj.weight \(F8_E5M2 \[2, 2\]\) must be F8_E4M3",
        ),
        ({"weight": codes(torch.Generator(), 4, 4)}, r"q_proj.weight_scale is missing next to weight"),
        ({"weight": codes(torch.Generator(), 4, 4, 4), "weight_scale": torch.ones(1)}, "must be a matrix"),
        ({"weight": codes(torch.Generator(), 0, 4), "weight_scale": torch.ones(1)}, "must be a matrix"),
        (
            {"weight": codes(torch.Generator(), 256, 256), "weight_scale": torch.ones(3, 2)},
            r"\(F32 \[3, 2\]\) fits no weight \[256, 256\]: expected",
        ),
        ({"weight": codes(torch.Generator(), 7, 8), "weight_scale": torch.ones(3)}, r"fits no weight \[7, 8\]"),
        (
            {"weight": codes(torch.Generator(), 8, 8), "weight_scale": torch.ones(1).long()},
            "must be F32 or F16 or BF16",
        ),
        (
            {
                "weight": codes(torch.Generator(), 8, 8),
                "weight_scale": torch.ones(1),
                "post_quant_scale": torch.ones(8),
            },
            "post_quant_scale .* is not understood",
        ),
        ({"weight": torch.zeros(8, 8), "weight_scale": torch.ones(1)}, "weight_scale .* belongs to no format"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_tensor(tensors: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        claimed_or_none(tensors)


@pytest.mark.parametrize("sizes", [[128], [0, 128], "128", [128, 10**9], [True, 1]])
def test_sizes_that_cannot_be_are_refused_by_the_key(sizes: object) -> None:
    with pytest.raises(ConfigError, match="'weight_block_size' is"):
        WeightReaders.of({**BLOCKS, "weight_block_size": sizes}, "config.json")


def test_fbgemm_and_what_is_left_out_of_a_checkpoint() -> None:
    weight, scale = codes(torch.Generator().manual_seed(5), 16, 32), torch.rand(16, 1)
    config = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["q_proj"]}
    tensors = {"weight": weight, "weight_scale": scale, "input_scale_ub": torch.tensor([1200.0])}
    assert torch.equal(read(config, tensors).dense(), weight.float() * scale)  # though the list names the module
    assert claimed(config, tensors).unused == ("input_scale_ub",)
    assert WeightReaders.of({"quant_method": "fp8", "activation_scheme": "static"}, "config.json").notes == (
        "quant_method 'fp8' (activations static): activations are not rounded: the weights alone are read in few bits",
    )


@pytest.mark.parametrize("key, value", [("fmt", "e5m2"), ("activation_scheme", "magic")])
def test_what_is_not_read_is_refused_by_the_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"quantization key '{key}' is '{value}'"):
        WeightReaders.of({**BLOCKS, key: value}, "config.json")


def test_blocks_of_compressed_tensors() -> None:
    generator = torch.Generator().manual_seed(6)
    weight, scale = codes(generator, 100, 130), torch.rand(2, 3, generator=generator)
    config = {
        "config_groups": {
            "a": {"weights": {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [64, 64]}}
        }
    }
    assert torch.equal(
        read(config, {"weight": weight, "weight_scale": scale}).dense(), by_blocks(weight, scale, 64, 64)
    )
    config["config_groups"]["a"]["weights"]["block_structure"] = [64]
    with pytest.raises(ConfigError, match=r"'config_groups.a.weights.block_structure' is"):
        WeightReaders.of(config, "config.json")
