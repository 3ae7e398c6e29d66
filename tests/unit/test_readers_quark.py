"""Quark: its four bits against their formula number by number, what its configuration asks, and its own packing."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from readers_rig import Tensors, claimed, read, read_or_refused
from test_readers_gptq import awq_words
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.readers import WeightReaders
from sgl.runtime.quantization.readers.quantization_methods import WEIGHTS_ONLY


def asked(dtype: str, **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": dtype, "qscheme": "per_group", "group_size": 32}},
        "export": {"pack_method": "reorder"},
        **more,
    }


def groups(seed: int, dtype: str) -> tuple[Tensors, Tensor]:
    """Words of eight outputs, in AWQ's order."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    out, group = 8 * rng.randint(1, 6), rng.choice([32, 128])
    inputs, low = group * rng.randint(1, 4), -8 if dtype == "int4" else 0
    q, zero = (torch.randint(low, low + 16, (rows, out), generator=generator) for rows in (inputs, inputs // group))
    zero = torch.zeros_like(zero) if rng.random() < 0.3 else zero
    scale = torch.rand(inputs // group, out, generator=generator).bfloat16()
    dense = (q - zero.repeat_interleave(group, 0)) * scale.float().repeat_interleave(group, 0)
    return {"weight": awq_words(q & 15), "weight_zero_point": awq_words(zero & 15), "weight_scale": scale}, dense.T


def outputs(seed: int, dtype: str) -> tuple[Tensors, Tensor]:
    """Words of eight inputs, in the same order, and a scale an output."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    out, inputs, low = rng.randint(3, 20), 8 * rng.randint(1, 20), -8 if dtype == "int4" else 0
    q, zero = (
        torch.randint(low, low + 16, (out, inputs), generator=generator),
        torch.randint(low, low + 16, (out,), generator=generator),
    )
    scale = torch.rand(out, generator=generator)
    filled = torch.nn.functional.pad(zero, (0, -out % 8))[None]
    return {"weight": awq_words(q & 15), "weight_zero_point": awq_words(filled & 15)[0], "weight_scale": scale}, (
        q - zero[:, None]
    ) * scale[:, None]


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("layout", [groups, outputs])
@pytest.mark.parametrize("seed", range(8))
def test_four_bits(dtype: str, layout: Any, seed: int) -> None:
    tensors, dense = layout(seed, dtype)
    found = read(asked(dtype), tensors)
    torch.testing.assert_close(found.dense(), dense)
    assert found.levels == 16 and claimed(asked(dtype), tensors).format.startswith("Quark, 4 bits, ")


def test_zeros_in_the_middle_are_one() -> None:
    tensors, _ = groups(1, "int4")
    assert (
        read(asked("int4"), {**tensors, "weight_zero_point": torch.zeros_like(tensors["weight_zero_point"])}).zero
        == 8.0
    )


def test_its_other_dtypes_are_those_of_other_formats() -> None:
    generator = torch.Generator().manual_seed(2)
    codes, scale = (
        torch.randint(0, 120, (8, 64), generator=generator).byte(),
        torch.randint(120, 130, (8, 4), generator=generator).byte(),
    )
    for dtype, tensors, form in (
        ("fp4", {"weight": codes, "weight_scale": scale}, "MXFP4, groups of 32"),
        (
            "fp6_e2m3",
            {"weight": codes[:, :48].contiguous(), "weight_scale": scale[:, :2].contiguous()},
            "MXFP6, groups of 32",
        ),
        (
            "fp8_e4m3",
            {
                "weight": codes.view(torch.float8_e4m3fn),
                "weight_scale": torch.tensor(0.5),
                "input_scale": torch.tensor(1.0),
            },
            "FP8, one scale",
        ),
        (
            "int8",
            {"weight": codes.char(), "weight_scale": torch.ones(8), "weight_zero_point": torch.zeros(8).char()},
            "int8, a scale per output",
        ),
    ):
        assert claimed(asked(dtype), tensors).format == form and read(asked(dtype), tensors).shape[0] == 8


TENSORS, _ = groups(3, "int4")


@pytest.mark.parametrize(
    "config, changed, message",
    [
        (asked("int8"), {}, r"q_proj.weight \(I32 .* holds words of int4 or uint4, and the configuration has neither"),
        (
            asked("int4", layer_quant_config={"*k_proj": {"weight": {"dtype": "uint4"}}}),
            {},
            "the configuration has int4 and uint4",
        ),
        (asked("int4"), {"weight_scale": torch.ones(3, 5)}, r"q_proj.weight_scale \(F32 \[3, 5\]\) must have shape"),
        (asked("int4"), {"weight_zero_point": torch.ones(1, 1).int()}, r"q_proj.weight_zero_point .* must have shape"),
        (asked("int4"), {"weight_scale": torch.ones(5)}, r"q_proj.weight_scale .* must have shape"),
        (asked("int4"), {"input_rotation": torch.ones(4, 4)}, "input_rotation .* is not understood"),
        ({"quant_method": "awq"}, {}, "belongs to no format"),
    ],
)
def test_what_cannot_be_is_refused_by_the_tensor(config: dict[str, Any], changed: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(config, {**TENSORS, **changed})


@pytest.mark.parametrize(
    "config, message",
    [
        (
            asked("fp6_e3m2"),
            "'global_quant_config.weight.dtype' is 'fp6_e3m2': weights of this dtype are not read; known ones: "
            "fp8_e4m3, fp4",
        ),
        (
            asked("int4", layer_quant_config={"*q": {"weight": {"dtype": "mx9"}}}),
            r"'layer_quant_config.\*q.weight.dtype' is 'mx9'",
        ),
        (
            asked("int4", layer_type_quant_config={"Linear": {"weight": [{"dtype": "fp4"}, {}]}}),
            "rounded in two stages",
        ),
        (asked("int4", export={"pack_method": "order"}), "'export.pack_method' is 'order': only 'reorder' is read"),
        (asked("int4", export={"weight_format": "fake_quantized"}), "'export.weight_format' is 'fake_quantized'"),
        (asked("int4", export=3), "'export' is 3: it must be an object"),
        (
            asked("int4", algo_config=[{"name": "awq"}, {"name": "rotation"}]),
            "'algo_config' is 'rotation': what it does to inputs is not computed",
        ),
        (asked("int4", algo_config=7), "'algo_config' is 7"),
    ],
)
def test_what_a_configuration_asks_and_is_not_done_is_refused_by_the_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WeightReaders.of(config, "config.json")


def test_rounding_of_activations_is_left_out_and_said() -> None:
    config = asked("fp4", algo_config=[{"name": "gptq"}])
    assert WeightReaders.of(config, "x").notes == ()
    config["global_quant_config"]["input_tensors"] = {"dtype": "fp4"}
    assert WeightReaders.of(config, "x").notes == (f"quark: {WEIGHTS_ONLY}",)


@pytest.mark.parametrize("layout", [groups, outputs])
def test_damaged_modules_are_read_or_refused(layout: Any) -> None:
    readers, (good, _) = WeightReaders.of(asked("int4"), "config.json"), layout(4, "int4")
    read_or_refused(random.Random(1), ((readers, good) for _ in range(200)))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("scheme", ["per_group", "per_channel"])
def test_what_its_own_package_packs(dtype: str, scheme: str) -> None:
    pack = pytest.importorskip("quark.torch.utils.pack")
    low = -8 if dtype == "int4" else 0
    q, zero = (
        torch.randint(low, low + 16, (16, 64)).int(),
        torch.randint(low, low + 16, (16, 2) if scheme == "per_group" else (16,)).int(),
    )
    scale = torch.rand(zero.shape)
    method = pack.create_pack_method(scheme, dtype)
    stored = {
        "weight": method.pack(q, True),
        "weight_zero_point": method.pack(zero, True),
        "weight_scale": scale.t().contiguous(),
    }
    spread = (part.view(16, -1).repeat_interleave(64 // part.view(16, -1).shape[1], 1) for part in (zero, scale))
    zeros, scales = spread
    torch.testing.assert_close(read(asked(dtype), stored).dense(), (q - zeros) * scales)
