"""ModelOpt: what its algorithms write that other formats have not: four bits of two outputs
in a byte, and inputs that are multiplied first.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from readers_rig import NAME, Tensors, claimed, headers, read, read_or_refused
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.readers import WeightReaders
from sgl.runtime.quantization.readers.quantization_methods import WEIGHTS_ONLY

CONFIG = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}


def pairs(seed: int) -> tuple[Tensors, Tensor]:
    """A module and its dense weight."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    out, group = 2 * rng.randint(1, 12), rng.choice([32, 64, 128])
    inputs = group * rng.randint(1, 4)
    q, scale = (
        torch.randint(-8, 8, (out, inputs), generator=generator),
        torch.rand(out, inputs // group, generator=generator),
    )
    packed = torch.tensor(
        [[int(q[o, i]) & 15 | (int(q[o + 1, i]) & 15) << 4 for i in range(inputs)] for o in range(0, out, 2)]
    ).byte()
    return {"weight": packed, "weight_scale": scale}, q * scale.repeat_interleave(group, 1)


@pytest.mark.parametrize("seed", range(12))
def test_four_bits_of_two_outputs(seed: int) -> None:
    tensors, dense = pairs(seed)
    assert torch.equal(read(CONFIG, tensors).dense(), dense)
    more = {
        **tensors,
        "input_scale": torch.tensor(1.0),
        "weight_scale_2": torch.tensor(3.0),
    }  # by which they are rounded to float8 to be multiplied
    claim = claimed(CONFIG, more)
    assert set(claim.unused) == {"input_scale", "weight_scale_2"} and claim.format.startswith("ModelOpt, 4 bits, ")
    assert torch.equal(read({**CONFIG, "quant_algo": "W4A8_AWQ"}, more).dense(), dense)


WHOLE, SCALE = torch.randint(-128, 128, (8, 64), generator=torch.Generator().manual_seed(0)).char(), torch.rand(8)
FLOAT8 = WHOLE.clamp(0, 120).view(torch.float8_e4m3fn)
NVFP4 = {
    "weight": WHOLE[:, :32].contiguous().view(torch.uint8),
    "weight_scale": torch.rand(8, 4).to(torch.float8_e4m3fn),
    "weight_scale_2": torch.tensor(0.5),
}


@pytest.mark.parametrize(
    "tensors",
    [pairs(3)[0], {"weight": WHOLE, "weight_scale": SCALE}, {"weight": FLOAT8, "weight_scale": SCALE}, NVFP4],
    ids=["W4A16", "W8A8", "FP8", "NVFP4"],
)
def test_inputs_that_are_multiplied_first(tensors: Tensors) -> None:
    dense = read(CONFIG, tensors).dense()
    inputs = torch.rand(dense.shape[1]).bfloat16() + 0.5
    found = read(CONFIG, {**tensors, "pre_quant_scale": inputs})
    assert found.group == 1 and claimed(CONFIG, {**tensors, "pre_quant_scale": inputs}).format.endswith(
        ", inputs multiplied"
    )
    torch.testing.assert_close(found.dense(), dense * inputs.float(), rtol=1e-6, atol=1e-7)


def test_inputs_that_are_multiplied_beside_a_plain_weight_have_no_place() -> None:
    assert (
        WeightReaders.of(CONFIG, "x").claim(
            NAME, headers({"weight": torch.zeros(4, 4), "pre_quant_scale": torch.ones(4)})
        )
        is None
    )


TENSORS, _ = pairs(5)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"weight_scale": torch.ones(3, 1)}, r"q_proj.weight_scale \(F32 \[3, 1\]\) fits no weight \["),
        ({"weight_scale": torch.ones(TENSORS["weight_scale"].shape[0], 7)}, "fits no weight"),
        ({"weight_scale": torch.ones(4)}, "weight_scale .* must be a matrix"),
        ({"weight": torch.zeros(2, 2, 2).byte()}, "weight .* must be a matrix"),
        ({"pre_quant_scale": torch.ones(3)}, "pre_quant_scale .* must be a number for each of"),
        ({"pre_quant_scale": torch.ones(3).byte()}, "pre_quant_scale .* must be F32"),
        ({"svdquant_lora_a": torch.ones(3)}, "svdquant_lora_a .* is not understood"),
    ],
)
def test_what_cannot_be_is_refused_by_the_tensor(changed: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(CONFIG, {**TENSORS, **changed})


def test_damaged_modules_are_read_or_refused() -> None:
    readers = WeightReaders.of(CONFIG, "config.json")
    good = {**TENSORS, "pre_quant_scale": torch.ones(TENSORS["weight"].shape[1])}
    read_or_refused(random.Random(1), ((readers, good) for _ in range(200)))


@pytest.mark.parametrize(
    "algorithm, told",
    [
        ("fp8_pb_wo", False),
        ("W8A16", False),
        ("W4A16_AWQ", False),
        ("W4A8_AWQ", True),
        ("NVFP4_AWQ", True),
        ("W8A8_SQ_PER_CHANNEL", True),
    ],
)
def test_algorithms(algorithm: str, told: bool) -> None:
    notes = WeightReaders.of({"quant_method": "modelopt", "quant_algo": algorithm}, "config.json").notes
    assert notes == ((f"quant_algo {algorithm!r}: {WEIGHTS_ONLY}",) if told else ())


@pytest.mark.parametrize("algorithm", ["NVFP4_SVD", "nf4", 3, ["FP8"]])
def test_others_are_refused_by_name(algorithm: Any) -> None:
    with pytest.raises(ConfigError, match=r"'quant_algo' is .*: this algorithm is not read"):
        WeightReaders.of({"quant_method": "modelopt", "quant_algo": algorithm}, "config.json")


@pytest.mark.parametrize("kind", ["int4_awq", "int8_sq", "fp8_pc_pt"])
def test_what_its_own_package_writes(kind: str) -> None:
    export = pytest.importorskip("modelopt.torch.export.quant_utils")
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    if kind == "int4_awq":
        scale = weight.unflatten(1, (-1, 128)).abs().amax(2) / 7
        spread = scale.repeat_interleave(128, 1)
        expected = (weight / spread).round().clamp(-8, 7) * spread
    else:
        scale = weight.abs().amax(1) / (127 if kind == "int8_sq" else 448)
        codes = weight / scale[:, None]
        expected = (codes.round() if kind == "int8_sq" else codes.to(torch.float8_e4m3fn).float()) * scale[:, None]
    written = export.to_quantized_weight(weight, scale, kind, block_size=128)
    assert torch.equal(read(CONFIG, {"weight": written, "weight_scale": scale}).dense(), expected)
