"""compressed-tensors: whole numbers, packed and not, in the packings of its
versions; its own package writes some of them.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from readers_rig import Tensors, claimed, read
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.readers import WeightReaders


def asked(bits: int, group: int | None, targets: list[str] | None = None, **more: Any) -> dict[str, Any]:
    strategy = "group" if group else "channel"
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "group_size": group}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": targets or ["Linear"], "weights": weights}},
        **more,
    }


def words_of(row: list[int], bits: int, dense: bool) -> list[int]:
    """int32 words of a row of codes: a stream, or as many codes a word as are whole."""
    if dense:
        whole = sum(code << bits * i for i, code in enumerate(row))
        words = [whole >> 32 * i & 0xFFFFFFFF for i in range(-(-len(row) * bits // 32))]
    else:
        each = 32 // bits
        words = [sum(code << bits * i for i, code in enumerate(row[at : at + each])) for at in range(0, len(row), each)]
    return [word - 2**32 if word >= 2**31 else word for word in words]


def packed(codes: Tensor, bits: int, dense: bool) -> Tensor:
    return torch.tensor([words_of(row, bits, dense) for row in codes.tolist()], dtype=torch.int32)


def formula(codes: Tensor, scale: Tensor, zero: Tensor, groups: list[int]) -> Tensor:
    out = torch.empty(codes.shape)
    for i, g in enumerate(groups):
        out[:, i] = (codes[:, i].float() - zero[:, g].float()) * scale[:, g].float()
    return out


def drawn(seed: int) -> tuple[dict[str, Any], Tensors, Tensor]:
    """A module of any bits, groups, zeros and order, and its dense weight."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    bits, dense = rng.randint(2, 8), rng.random() < 0.5
    group = rng.choice([32, 64, 128, *([0] if 32 % bits == 0 else [])])
    out, inputs = rng.choice([64, 96, 104]), (group or 32) * rng.randint(2, 4)
    shape = (out, inputs // (group or inputs))
    codes = torch.randint(0, 2**bits, (out, inputs), generator=generator)
    scale = torch.rand(shape, generator=generator).to(rng.choice([torch.bfloat16, torch.float16, torch.float32]))
    zero = torch.full(shape, 2 ** (bits - 1))
    tensors = {
        "weight_packed": packed(codes, bits, dense),
        "weight_scale": scale,
        "weight_shape": torch.tensor([out, inputs]),
    }
    groups = [i // (group or inputs) for i in range(inputs)]
    if rng.random() < 0.5:
        zero = torch.randint(0, 2**bits, shape, generator=generator)
        kept = packed(zero.T, bits, dense).T.contiguous()
        tensors["weight_zero_point"] = (zero - 2 ** (bits - 1)).char() if rng.random() < 0.3 else kept
    if rng.random() < 0.3:
        groups = torch.tensor(groups)[torch.randperm(inputs, generator=generator)].tolist()
        tensors["weight_g_idx"] = torch.tensor(groups, dtype=rng.choice([torch.int32, torch.int64]))
    return asked(bits, group or None), tensors, formula(codes, scale, zero, groups)


@pytest.mark.parametrize("seed", range(60))
def test_packed_numbers(seed: int) -> None:
    config, tensors, dense = drawn(seed)
    found = read(config, tensors)
    assert torch.equal(found.dense(), dense)
    assert (found.order is None) == ("weight_g_idx" not in tensors or found.scale.shape[1] == 1) and claimed(
        config, tensors
    ).unused == ("weight_shape",)


def test_a_place_for_the_order_that_was_never_filled_is_no_order() -> None:
    config, tensors, dense = drawn(0)
    tensors.pop("weight_g_idx", None)
    expected = read(config, tensors).dense()
    found = read(config, {**tensors, "weight_g_idx": torch.full(dense.shape[1:], -1)})
    assert found.order is None and torch.equal(found.dense(), expected)


def test_groups_of_unequal_length_are_refused() -> None:
    codes = torch.randint(0, 16, (8, 64))
    tensors = {
        "weight_packed": packed(codes, 4, True),
        "weight_scale": torch.ones(8, 2),
        "weight_g_idx": torch.tensor([0] * 33 + [1] * 31),
    }
    with pytest.raises(CheckpointError, match=r"weight_g_idx .* not of 32 each; groups of unequal length are not read"):
        read(asked(4, 32), tensors)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (24, 1), (24,)])
@pytest.mark.parametrize("zeros", [False, True])
def test_int8_weights(shape: tuple[int, ...], zeros: bool) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    q, scale = torch.randint(-128, 128, (24, 40), generator=generator), torch.rand(shape, generator=generator)
    zero = torch.randint(-128, 128, shape, generator=generator)
    tensors: Tensors = {
        "weight": q.char(),
        "weight_scale": scale,
        "input_scale": torch.ones(1),
        **({"weight_zero_point": zero.char()} if zeros else {}),
    }
    each = [
        part.reshape(-1, 1).expand(24, 1) if part.numel() == 1 else part.reshape(24, 1)
        for part in (scale, zero if zeros else zero * 0)
    ]
    assert torch.equal(read(None, tensors).dense(), (q - each[1]).float() * each[0])


def test_a_preset_may_mean_groups_or_whole_rows() -> None:
    codes = torch.randint(0, 256, (8, 256), generator=torch.Generator().manual_seed(0))
    config = {"config_groups": {"W8A16": ["Linear"]}}
    for columns in (1, 2):
        scale = torch.rand(8, columns)
        tensors = {"weight_packed": packed(codes, 8, True), "weight_scale": scale}
        assert torch.equal(
            read(config, tensors).dense(), (codes.float() - 128) * scale.repeat_interleave(256 // columns, 1)
        )


@pytest.mark.parametrize("targets", [["model.layers.0.self_attn.q_proj"], ["re:.*q_proj$"], ["q_proj"]])
def test_where_two_schemes_fit_the_targets_decide(targets: list[str]) -> None:
    """Four bits in groups of 64 and two bits in groups of 128 have the same widths."""
    config = asked(2, 128)
    config["config_groups"]["group_1"] = asked(4, 64, targets)["config_groups"]["group_0"]
    codes, scale = torch.randint(0, 16, (8, 256)), torch.rand(8, 4)
    tensors = {"weight_packed": packed(codes, 4, True), "weight_scale": scale}
    assert claimed(config, tensors).format == "compressed-tensors, 4 bits, groups of 64"
    assert claimed(config, tensors, "model.layers.0.mlp.up_proj").format == "compressed-tensors, 2 bits, groups of 128"


def test_a_pattern_that_never_ends_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.quantization.readers import compressed_tensors_schemes

    monkeypatch.setattr(compressed_tensors_schemes, "SECONDS", 0.05)
    config = asked(2, 128)
    config["config_groups"]["group_1"] = asked(4, 64, ["re:(.*.*)*.*(.*.*)*x$"])["config_groups"]["group_0"]
    tensors = {"weight_packed": packed(torch.zeros(8, 256).int(), 4, True), "weight_scale": torch.rand(8, 4)}
    assert claimed(config, tensors).shape == (8, 512)


GOOD = {"weight_packed": packed(torch.zeros(8, 128).int(), 4, True), "weight_scale": torch.ones(8, 4)}


@pytest.mark.parametrize(
    "config, tensors, message",
    [
        (
            asked(4, 32),
            {**GOOD, "weight_scale": torch.ones(8, 3)},
            r"weight_packed \(I32 \[8, 16\]\) and weight_scale \[8, 3\] fit no scheme .*\(4 bits, groups of 32\)",
        ),
        (asked(4, 32), {**GOOD, "weight_scale": torch.ones(7, 4)}, "weight_scale"),
        (asked(8, 32), GOOD, "fit no scheme"),
        (None, GOOD, r"fit no scheme of whole numbers in config_groups \(none\)"),
        (asked(3, None), GOOD | {"weight_scale": torch.ones(8, 1)}, "fit no scheme"),
        (asked(4, 32), {"weight_packed": GOOD["weight_packed"]}, "weight_scale is missing"),
        (
            asked(4, 32),
            {**GOOD, "weight_zero_point": torch.zeros(2, 4).int()},
            r"weight_zero_point \(I32 \[2, 4\]\) fits no 8 zeros of 4 bits",
        ),
        (
            asked(4, 32),
            {**GOOD, "weight_zero_point": torch.zeros(1, 3).int()},
            r"weight_zero_point .* must have shape \[1, 4\]",
        ),
        (asked(4, 32), {**GOOD, "weight_g_idx": torch.zeros(127).int()}, "weight_packed|weight_g_idx"),
        (asked(4, 32), {**GOOD, "weight_packed": GOOD["weight_packed"][None]}, "must be a matrix"),
        (asked(4, 32), {**GOOD, "hadamard": torch.zeros(1)}, "hadamard .* is not understood with"),
        (
            None,
            {"weight": torch.zeros(4, 4).char(), "weight_scale": torch.ones(3, 1)},
            "weight_scale .* fits no weight",
        ),
        (None, {"weight": torch.zeros(4, 4).char()}, "weight .* is not a float"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_tensor(
    config: dict[str, Any] | None, tensors: Tensors, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(config, tensors)


@pytest.mark.parametrize(
    "config, message",
    [
        (asked(0, 32), "'config_groups.group_0.weights.num_bits' is 0: weights have 1 to 8 bits"),
        (asked(9, 32), "num_bits' is 9"),
        (asked(4, 2**40), "group_size' is 1099511627776"),
        (asked(4, 32, quantization_status="frozen"), "'quantization_status' is 'frozen': only compressed"),
        (asked(4, 32, transform_config={"config_groups": {"R1": {}}}), "'transform_config'"),
        (
            asked(4, 32, sparsity_config={"format": "sparse-24-bitmask"}),
            "'sparsity_config.format' is 'sparse-24-bitmask': sparse weights",
        ),
        (asked(4, 32, format="marlin-24"), "'format' is 'marlin-24': this format is not read; take"),
        (asked(4, 32, config_groups=[1]), "'config_groups' is .*it must be an object"),
    ],
)
def test_what_a_configuration_asks_and_is_not_done_is_refused_by_the_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WeightReaders.of(config, "config.json")


def test_rounding_of_activations_is_left_out_and_said() -> None:
    config = asked(8, None)
    assert WeightReaders.of(config, "config.json").notes == ()
    config["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": True}
    assert WeightReaders.of(config, "config.json").notes == (
        "config_groups.group_0: activations are not rounded: the weights alone are read in few bits",
    )


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("strategy", ["group", "channel"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_whole_numbers_that_lie_in_bytes(bits: int, strategy: str, symmetric: bool) -> None:
    """As the presets W2A8 to W7A8, W4A4 and W4AFP8 are written: their kernels read
    no more than four bits where these suffice.
    """
    half, groups, generator = 2 ** (bits - 1), 4 if strategy == "group" else 1, torch.Generator().manual_seed(bits)
    q = torch.randint(-half, half, (12, 128), generator=generator)
    scale, zero = (
        torch.rand(12, groups, generator=generator),
        torch.randint(-half, half, (12, groups), generator=generator),
    )
    spread, zeros = (part.repeat_interleave(128 // groups, 1) for part in (scale, zero))
    config = asked(bits, 32 if strategy == "group" else None)
    tensors = {"weight": q.char(), "weight_scale": scale, **({} if symmetric else {"weight_zero_point": zero.char()})}
    found = read(config, tensors)
    torch.testing.assert_close(found.dense(), (q if symmetric else q - zeros) * spread)
    assert found.levels == (16 if bits <= 4 else 256) and claimed(config, tensors).format.startswith(
        "int8" if bits == 8 else f"{bits} bits in bytes"
    )
    others = {
        "a": config["config_groups"]["group_0"],
        "b": asked(8, 32 if strategy == "group" else None)["config_groups"]["group_0"],
    }
    assert read({**config, "config_groups": others}, tensors).levels == 256, "nothing says for sure which of both it is"
    if bits < 8:
        with pytest.raises(
            CheckpointError,
            match=rf"q_proj.weight \(I8 .* holds numbers from .*, {bits} bits have -{half} to {half - 1}",
        ):
            read(config, {**tensors, "weight": (q + 1).char()})


@pytest.mark.parametrize("seed", range(40))
def test_what_its_own_package_writes(seed: int) -> None:
    library = pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    kind = rng.choice(
        [
            "pack-quantized",
            "int-quantized",
            "float-quantized",
            "nvfp4-pack-quantized",
            "mxfp4-pack-quantized",
            "mxfp8-quantized",
        ]
    )
    arguments, names = OWN[kind](rng)
    args = QuantizationArgs(**arguments)
    out, inputs = 64, rng.choice([128, 256])
    state = {"weight": torch.randn(out, inputs, generator=generator), **names(out, inputs, args, generator)}
    activations = (
        QuantizationArgs(num_bits=8, type=args.type, strategy="tensor")
        if "quantized" in kind and "pack" not in kind
        else None
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=activations)
    writer = BaseCompressor.get_value_from_registry(kind)
    written = writer.compress(state, scheme)
    expected = writer.decompress(dict(written), scheme)["weight"].float()
    config = {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
        "version": library.__version__,
    }
    found = read(config, written).dense()
    assert torch.allclose(found, expected, rtol=2**-7 if "fp4" in kind or "mx" in kind else 1e-6, atol=0)


def _scales(out: int, inputs: int, args: Any, generator: torch.Generator) -> Tensors:
    shape = {
        "channel": (out, 1),
        "tensor": (1,),
        "group": (out, inputs // (args.group_size or 1)),
        "block": (-(-out // 128), -(-inputs // 128)),
    }[args.strategy]
    scale = torch.rand(shape, generator=generator) * 0.02 + 0.01
    if args.group_size == 32 and args.type == "float":
        return {"weight_scale": torch.exp2(torch.floor(torch.log2(scale)))}
    zero = torch.randint(-(2 ** (args.num_bits - 1)), 2 ** (args.num_bits - 1), shape, generator=generator).char()
    return {"weight_scale": scale, **({} if args.symmetric else {"weight_zero_point": zero})}


def _nvfp4(out: int, inputs: int, args: Any, generator: torch.Generator) -> Tensors:
    scale = (torch.rand(out, inputs // 16, generator=generator) * 400 + 1).to(torch.float8_e4m3fn)
    return {"weight_scale": scale.float(), "weight_global_scale": torch.rand(1, generator=generator) * 1000 + 100}


def _int(rng: random.Random) -> tuple[dict[str, Any], Any]:
    bits = rng.randint(2, 8)
    strategy = rng.choice(["group", "channel"]) if 32 % bits == 0 else "group"
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": rng.random() < 0.5,
        "strategy": strategy,
        "group_size": rng.choice([32, 64]) if strategy == "group" else None,
    }, _scales


OWN: dict[str, Any] = {
    "pack-quantized": _int,
    "int-quantized": lambda rng: (
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": rng.random() < 0.5},
        _scales,
    ),
    "float-quantized": lambda rng: (
        {
            "num_bits": 8,
            "type": "float",
            **rng.choice(
                [{"strategy": "channel"}, {"strategy": "tensor"}, {"strategy": "block", "block_structure": [128, 128]}]
            ),
        },
        _scales,
    ),
    "nvfp4-pack-quantized": lambda rng: (
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        _nvfp4,
    ),
    "mxfp4-pack-quantized": lambda rng: (
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
        _scales,
    ),
    "mxfp8-quantized": lambda rng: (
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
        _scales,
    ),
}
