"""Floats of four and six bits, in both conventions, against their formulas written out for each number."""

from __future__ import annotations

import pytest
import torch
from readers_rig import Tensors, claimed, read
from torch import Tensor

from sgl.runtime.errors import CheckpointError

MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}


def e2m1(code: int) -> float:
    size = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7]
    return -size if code & 8 else size


def e2m3(code: int) -> float:
    exponent, fraction = code >> 3 & 3, code & 7
    size = fraction / 8 if exponent == 0 else (1 + fraction / 8) * 2 ** (exponent - 1)
    return -size if code & 32 else size


def drawn(seed: int, out: int, inputs: int, top: int = 16) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, top, (out, inputs), generator=generator), generator


def pairs(codes: Tensor) -> Tensor:
    """Two a byte, the low half first."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).byte()


def sixes(codes: Tensor) -> Tensor:
    """Four codes in three bytes, little endian."""
    rows = []
    for row in codes.tolist():
        filled = bytearray()
        for at in range(0, len(row), 4):
            filled += sum(code << 6 * place for place, code in enumerate(row[at : at + 4])).to_bytes(3, "little")
        rows.append(list(filled))
    return torch.tensor(rows, dtype=torch.uint8)


def nvfp4(seed: int, out: int, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes, scales of 16, and the weight without the global scale."""
    codes, generator = drawn(seed, out, inputs)
    scale = (torch.rand(out, inputs // 16, generator=generator) * 448).to(torch.float8_e4m3fn)
    dense = torch.tensor([[e2m1(code) for code in row] for row in codes.tolist()]) * scale.float().repeat_interleave(
        16, 1
    )
    return pairs(codes), scale, dense


@pytest.mark.parametrize("seed", range(6))
def test_the_global_scale_multiplies_in_one_convention_and_divides_in_the_other(seed: int) -> None:
    packed, scale, dense = nvfp4(seed, 8 + seed, 32 * (seed + 1))
    whole = torch.rand(1, generator=torch.Generator().manual_seed(seed)) * 0.01 + 1e-4
    tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": whole[0], "input_scale": whole[0]}
    assert torch.equal(read(MODELOPT, tensors).dense(), dense * whole)
    other = {
        "weight_packed": packed,
        "weight_scale": scale,
        "weight_global_scale": 1 / whole,
        "input_global_scale": whole,
    }
    assert torch.allclose(read(None, other).dense(), dense / (1 / whole), rtol=3e-7, atol=0)
    assert (
        claimed(None, other).unused == ("input_global_scale",) and claimed(None, other).format == "NVFP4, groups of 16"
    )


def test_two_global_scales_are_those_of_gate_and_up() -> None:
    packed, scale, dense = nvfp4(9, 6, 64)
    found = read(MODELOPT, {"weight": packed, "weight_scale": scale, "weight_scale_2": torch.tensor([2.0, 0.5])})
    assert torch.equal(found.dense(), dense * torch.tensor([2.0, 2, 2, 0.5, 0.5, 0.5])[:, None])


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize("seed", range(4))
def test_scales_that_are_exponents(bits: int, seed: int) -> None:
    out, inputs = 5 + seed, 32 * (seed + 1)
    codes, generator = drawn(seed, out, inputs, 2**bits)
    exponents = torch.randint(100, 150, (out, inputs // 32), generator=generator, dtype=torch.uint8)
    value, pack = (e2m1, pairs) if bits == 4 else (e2m3, sixes)
    dense = torch.tensor(
        [
            [value(code) * 2.0 ** (int(exponents[o, i // 32]) - 127) for i, code in enumerate(row)]
            for o, row in enumerate(codes.tolist())
        ]
    )
    for scale in (exponents, exponents.view(torch.float8_e8m0fnu)):
        tensors = {"weight_packed": pack(codes), "weight_scale": scale}
        assert torch.equal(read({"format": f"mxfp{bits}-pack-quantized", "config_groups": {}}, tensors).dense(), dense)
        assert claimed(None, tensors).format == f"MXFP{bits}, groups of 32"


PACKED, SCALE, _ = nvfp4(0, 8, 64)


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"weight": PACKED, "weight_scale": SCALE}, "needs one of weight_global_scale and weight_scale_2"),
        (
            {"weight": PACKED, "weight_scale": SCALE[:, :3], "weight_scale_2": torch.ones(1)},
            r"weight_scale .* must have shape \[8, 4\]",
        ),
        (
            {"weight": PACKED, "weight_scale": SCALE, "weight_scale_2": torch.ones(3)},
            r"weight_scale_2 .* fits no weight \[8, 64\]",
        ),
        (
            {"weight": PACKED, "weight_scale": SCALE.float(), "weight_scale_2": torch.ones(1)},
            r"weight_scale .* fits no weight \[16, 32\] of four bits, two outputs in a byte",
        ),
        (
            {"weight_packed": PACKED.char(), "weight_scale": SCALE, "weight_scale_2": torch.ones(1)},
            "weight_packed .* must be U8",
        ),
        (
            {
                "weight": PACKED,
                "weight_scale": SCALE,
                "weight_scale_2": torch.ones(1),
                "pre_quant_scale": torch.ones(32),
            },
            "pre_quant_scale .* must be a number for each of 64 inputs",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_the_tensor(tensors: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        claimed(MODELOPT, tensors)


def gpt_oss(seed: int, out: int, groups: int) -> tuple[Tensors, Tensor]:
    """Blocks and scales of one expert, and the weight that they stand for."""
    codes, generator = drawn(seed, out, 32 * groups)
    scales = torch.randint(110, 130, (out, groups), generator=generator)
    weight = torch.tensor([[e2m1(code) for code in row] for row in codes.tolist()]) * torch.exp2(
        scales.float() - 127
    ).repeat_interleave(32, 1)
    return {"blocks": pairs(codes).view(out, groups, 16), "scales": scales.byte()}, weight


def test_blocks_of_gpt_oss() -> None:
    tensors, weight = gpt_oss(0, 6, 3)
    assert torch.equal(read({"quant_method": "mxfp4"}, tensors).dense(), weight)


@pytest.mark.parametrize(
    ("name", "shape"), [("blocks", (6, 3, 8)), ("blocks", (6, 48)), ("scales", (6, 4)), ("scales", (6,))]
)
def test_blocks_of_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    tensors, _ = gpt_oss(0, 6, 3)
    with pytest.raises(CheckpointError, match=name):
        claimed({"quant_method": "mxfp4"}, tensors | {name: torch.zeros(shape, dtype=torch.uint8)})
