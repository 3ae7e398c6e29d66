"""torchao: its layouts against their formulas number by number, what it says of a
weight beside it, and the package itself.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from readers_rig import NAME, Tensors, claimed, read, read_or_refused
from torch import Tensor

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.readers import WeightReaders
from sgl.runtime.quantization.readers.quantization_methods import ROWS_TOO, WEIGHTS_ONLY
from sgl.runtime.quantization.readers.swizzled_scales import in_order
from sgl.runtime.quantization.readers.torchao_int4_reader import untile

CONFIG = {"quant_method": "torchao"}
WEIGHT = f"{NAME}.weight"
Sample = tuple[dict[str, Any], Tensors, Tensor]  # what the file says, its tensors, the dense weight


def said(kind: str, **keys: Any) -> dict[str, str]:
    return {WEIGHT: json.dumps({"_type": kind, "_data": keys})}


def dtype(name: str) -> dict[str, str]:
    return {"_type": "torch.dtype", "_data": name}


def words_of(nibbles: list[int]) -> int:
    """Eight of them, the first in the lowest bits."""
    word = sum(nibble << 4 * at for at, nibble in enumerate(nibbles))
    return word - 2**32 if word >= 2**31 else word


def spread(groups: Tensor, group: int, inputs: int) -> Tensor:
    """[groups, out] -> float32 [out, in]"""
    return groups.T.float().repeat_interleave(group, 1)[:, :inputs]


def sizes(seed: int) -> tuple[random.Random, torch.Generator, int, int, int]:
    rng = random.Random(seed)
    group = rng.choice([32, 64])
    return rng, torch.Generator().manual_seed(seed), rng.randint(1, 20), group * rng.randint(1, 4), group


def plain(seed: int) -> Sample:
    """Int4Tensor."""
    rng, generator, out, inputs, group = sizes(seed)
    q = torch.randint(-8, 8, (out, inputs), generator=generator)
    scale, zero = (torch.randn(inputs // group, out, generator=generator).bfloat16() for _ in range(2))
    zero = zero if rng.random() < 0.7 else torch.zeros_like(zero)
    packed = (
        torch.tensor([[int(row[i]) & 15 | (int(row[i + 1]) & 15) << 4 for i in range(0, inputs, 2)] for row in q])
        .byte()
        .view(torch.int8)
    )
    dense = q * spread(scale, group, inputs) + spread(zero, group, inputs)
    tensors = {"_weight_qdata": packed, "_weight_scale": scale, "_weight_zero_point": zero}
    return (
        said("Int4Tensor", block_size=[1, group], shape=[out, inputs], activation_dtype=dtype("bfloat16")),
        tensors,
        dense,
    )


def packed_in_int32(seed: int) -> Sample:
    """Int4PlainInt32Tensor."""
    _, generator, out, inputs, group = sizes(seed)
    q = torch.randint(0, 16, (out, inputs), generator=generator)
    scale, zero = (
        torch.randn(inputs // group, out, generator=generator).half(),
        torch.randint(0, 16, (inputs // group, out), generator=generator).char(),
    )
    packed = torch.tensor(
        [[words_of(row[at : at + 8].tolist()) for at in range(0, inputs, 8)] for row in q], dtype=torch.int32
    )
    dense = (q - spread(zero, group, inputs)) * spread(scale, group, inputs)
    return (
        said("Int4PlainInt32Tensor", block_size=[1, group], shape=[out, inputs]),
        {"_weight_qdata": packed, "_weight_scale": scale, "_weight_zero_point": zero},
        dense,
    )


def tiled(q: Tensor, tiles: int) -> Tensor:
    """As a card's threads pack them, `tiles` of 16 inputs together:
    `_convert_weight_to_int4pack` of torch, of bytes with the even input above.
    """
    out, inputs = q.shape
    packed = torch.zeros(out // 8, inputs // (tiles * 16), 32, tiles // 2, dtype=torch.int32)
    for row, column, lane, pair in torch.cartesian_prod(*map(torch.arange, packed.shape)).tolist():
        base = (column * tiles + 2 * pair) * 16
        first = [base + lane % 4 * 2 + 8 * at for at in range(4)]
        n = row * 8 + lane // 4
        packed[row, column, lane, pair] = words_of([int(q[n, k]) for k in first] + [int(q[n, k + 1]) for k in first])
    return packed


def by_lanes(packed: Tensor) -> Tensor:
    """As torchao's kernel takes them apart: `unpack_tensor_core_tiled_layout`."""
    rows, columns, _, pairs = packed.shape
    out = torch.zeros(rows * 8, columns * pairs * 32, dtype=torch.int32)
    for row, column, lane, pair in torch.cartesian_prod(*map(torch.arange, packed.shape)).tolist():
        word, base = int(packed[row, column, lane, pair]) & 0xFFFFFFFF, (column * pairs * 2 + pair * 2) * 16
        offsets = [base + lane % 4 * 2, base + lane % 4 * 2 + 8, base + 16 + lane % 4 * 2, base + 16 + lane % 4 * 2 + 8]
        values = [0] * 8
        for place, shift in zip((0, 2, 4, 6, 1, 3, 5, 7), range(0, 32, 4), strict=True):
            values[place] = word >> shift & 15
        for at, offset in enumerate(offsets):
            out[row * 8 + lane // 4, offset : offset + 2] = torch.tensor(values[2 * at : 2 * at + 2])
    return out


def in_tiles(seed: int) -> Sample:
    """Int4TilePackedTo4dTensor, filled up to whole tiles."""
    rng, generator, out, inputs, group = sizes(seed)
    filled = (-(-out // 8) * 8, -(-inputs // 256) * 256)
    q = torch.randint(0, 16, filled, generator=generator)
    both = torch.randn(filled[1] // group, filled[0], 2, generator=generator).bfloat16()
    dense = (q - 8) * spread(both[..., 0], group, filled[1]) + spread(both[..., 1], group, filled[1])
    tensors = {"_weight_qdata": tiled(q, rng.choice([2, 4, 8])), "_weight_scale_and_zero": both}
    return said("Int4TilePackedTo4dTensor", block_size=[1, group], shape=[out, inputs]), tensors, dense[:out, :inputs]


def in_bytes(seed: int, bits: int | None = None) -> Sample:
    """IntxUnpackedToInt8Tensor."""
    rng, generator, out, inputs, group = sizes(seed)
    bits = bits or rng.randint(1, 8)
    half = 2 ** (bits - 1)
    q, grid = torch.randint(-half, half, (out, inputs), generator=generator), (out, inputs // group)
    scale = torch.randn(grid, generator=generator).bfloat16()
    zero = rng.choice(
        [
            torch.zeros(grid).char(),
            torch.randint(-half, half, grid, generator=generator).char(),
            torch.randn(grid, generator=generator),
        ]
    )
    dense = (q - spread(zero.T, group, inputs)) * spread(scale.T, group, inputs)
    keys = {
        "target_dtype": dtype(f"int{bits}"),
        "block_size": [1, group],
        "dtype": dtype("bfloat16"),
        "activation_quantization": "int8_asym_per_token",
    }
    return (
        said("IntxUnpackedToInt8Tensor", **keys),
        {"_weight_qdata": q.char(), "_weight_scale": scale, "_weight_zero_point": zero},
        dense,
    )


SAMPLES = {"plain": plain, "words": packed_in_int32, "tiles": in_tiles, "bytes": in_bytes}


def weight(told: dict[str, Any], tensors: Tensors) -> QuantizedWeight:
    return read(CONFIG, tensors, told=told)


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("seed", range(6))
def test_whole_numbers_of_few_bits(kind: str, seed: int) -> None:
    told, tensors, dense = SAMPLES[kind](seed)
    found = weight(told, tensors)
    torch.testing.assert_close(
        found.dense(), dense, rtol=1e-6, atol=1e-4 if kind == "bytes" else 1e-6
    )  # a zero of floats and 128 are one float32
    assert found.levels == (
        16 if kind != "bytes" or int(json.loads(told[WEIGHT])["_data"]["target_dtype"]["_data"][3:]) <= 4 else 256
    )


@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_that_lie_in_bytes(bits: int) -> None:
    told, tensors, dense = in_bytes(40 + bits, bits)
    torch.testing.assert_close(weight(told, tensors).dense(), dense, rtol=1e-6, atol=1e-4)
    assert claimed(CONFIG, tensors, told=told).format.startswith(f"torchao, {bits} bits in bytes")


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_tiles_of_a_card_both_ways(tiles: int) -> None:
    generator = torch.Generator().manual_seed(tiles)
    q = torch.randint(0, 16, (24, 256), generator=generator)
    assert torch.equal(untile(tiled(q, tiles)).long(), q)
    words = torch.randint(-(2**31), 2**31, (2, 3, 32, tiles // 2), generator=generator).int()
    assert torch.equal(untile(words).int(), by_lanes(words))


def test_zeros_and_offsets_that_are_none_cost_the_kernels_nothing() -> None:
    told, tensors, _ = plain(3)
    whole = weight(told, {**tensors, "_weight_zero_point": torch.zeros_like(tensors["_weight_zero_point"])})
    assert whole.zero == 8.0 and whole.offset is None
    told, tensors, _ = in_bytes(1, 4)
    found = weight(told, {**tensors, "_weight_zero_point": torch.zeros(tensors["_weight_scale"].shape).char()})
    assert found.zero == 8.0 and found.levels == 16


@pytest.mark.parametrize("kind", SAMPLES)
def test_inputs_that_are_multiplied_first(kind: str) -> None:
    """As AWQ and SmoothQuant ask; the groups that are left hold an input
    each, and are restored where it is computed.
    """
    told, tensors, dense = SAMPLES[kind](4)
    inputs = torch.rand(dense.shape[1]).bfloat16() + 0.5
    for shaped in (inputs, inputs[None]):
        found = weight(told, {**tensors, "_weight_act_pre_scale": shaped})
        assert found.group == 1
        torch.testing.assert_close(found.dense(), dense * inputs.float(), rtol=1e-5, atol=1e-4)
    assert claimed(CONFIG, {**tensors, "_weight_act_pre_scale": inputs}, told=told).format.endswith(
        ", inputs multiplied"
    )


def swizzled(scales: Tensor) -> Tensor:
    """As cuBLAS wants them, number by number."""
    rows, columns = scales.shape
    wide = -(-columns // 4)
    found = torch.zeros(-(-rows // 128) * wide * 512, dtype=scales.dtype)
    for r in range(rows):
        for c in range(columns):
            found[(r // 128 * wide + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales[r, c]
    return found.view(-(-rows // 128) * 32, wide * 16)


@pytest.mark.parametrize("shape", [(1, 1), (33, 3), (128, 4), (130, 9)])
def test_scales_in_the_order_of_tensor_cores(shape: tuple[int, int]) -> None:
    scales = torch.arange(shape[0] * shape[1]).view(shape)
    assert torch.equal(in_order(swizzled(scales), shape), scales)


@pytest.mark.parametrize("kind", ["NVFP4Tensor", "MXTensor of four bits", "MXTensor of eight bits"])
@pytest.mark.parametrize("straight", [False, True])
def test_floats_in_blocks_are_those_of_the_other_formats(kind: str, straight: bool) -> None:
    nvidia, four = kind == "NVFP4Tensor", not kind.endswith("eight bits")
    generator, group = torch.Generator().manual_seed(4), 16 if nvidia else 32
    qdata = torch.randint(0, 126, (48, 64 if four else 128), generator=generator).byte()
    scale = torch.randint(100, 120, (48, 128 // group), generator=generator).byte()
    known: Tensors = (
        {"weight_packed": qdata, "weight_scale": scale}
        if four
        else {"weight": qdata.view(torch.float8_e4m3fn), "weight_scale": scale.view(torch.float8_e8m0fnu)}
    )
    if nvidia:
        known |= {"weight_scale": scale.view(torch.float8_e4m3fn), "weight_scale_2": torch.tensor(0.3)}
    expected = read(None, known).dense()
    lies = scale if straight else swizzled(scale)
    tensors = {
        "_weight_qdata": qdata if four else known["weight"],
        "_weight_scale": lies.view(torch.float8_e4m3fn if nvidia else torch.float8_e8m0fnu),
    }
    told = said(kind.split()[0], block_size=group, is_swizzled_scales=not straight)
    if nvidia:
        alone = weight(told, tensors).dense()
        tensors |= {"_weight_per_tensor_scale": torch.tensor(0.3), "_weight_act_per_tensor_scale": torch.tensor(1.0)}
        torch.testing.assert_close(alone * 0.3, expected)
    assert torch.equal(weight(told, tensors).dense(), expected)


@pytest.mark.parametrize("shape", [(1, 1), (24, 1), (24, 2)])
def test_whole_bytes(shape: tuple[int, int]) -> None:
    q, scale = torch.randint(-128, 128, (24, 64)).char(), torch.rand(shape)
    spread = scale.expand(24, -1).repeat_interleave(64 // shape[1], 1)
    tensors = {"_weight_qdata": q, "_weight_scale": scale, "bias": torch.zeros(24)}
    assert torch.equal(read(CONFIG, tensors).dense(), q.float() * spread)
    zero = torch.randint(-8, 8, shape).char()
    expected = (q.float() - zero.expand(24, -1).repeat_interleave(64 // shape[1], 1)) * spread
    tensors["_weight_zero_point"] = zero
    assert torch.equal(read(None, tensors).dense(), expected) and torch.equal(
        weight(said("Int8Tensor"), tensors).dense(), expected
    )
    assert weight(said("Int8Tensor"), {**tensors, "_weight_zero_point": torch.zeros_like(zero)}).zero == 128.0
    del tensors["_weight_zero_point"]
    tensors["_weight_qdata"] = q.float().to(torch.float8_e4m3fn)
    assert torch.equal(read(None, tensors).dense(), tensors["_weight_qdata"].float() * spread)


def changed(sample: Sample, keys: dict[str, Any], **tensors: Tensor | None) -> tuple[dict[str, Any], Tensors]:
    told = json.loads(sample[0][WEIGHT])
    told["_data"] |= keys
    found = {name: tensor for name, tensor in {**sample[1], **tensors}.items() if tensor is not None}
    return {WEIGHT: json.dumps(told)}, found


PLAIN, TILES, BYTES, WORDS = plain(2), in_tiles(2), in_bytes(2, 4), packed_in_int32(2)
SHAPE = json.loads(PLAIN[0][WEIGHT])["_data"]["shape"]
ANY = {"_weight_qdata": torch.zeros(4, 4).byte(), "_weight_scale": torch.ones(4, 1)}


@pytest.mark.parametrize(
    "module, message",
    [
        (
            ({}, ANY),
            r"q_proj._weight_qdata \(U8 \[4, 4\]\) is none of int8 or float8, and its file's metadata does not say",
        ),
        (({}, PLAIN[1]), r"q_proj._weight_qdata \(I8 .* is none of int8 or float8"),
        (
            ({}, {**ANY, "_weight_qdata": torch.zeros(4, 4).char(), "_weight_scale": torch.ones(3, 1)}),
            r"q_proj._weight_scale \(F32 \[3, 1\]\) fits no weight",
        ),
        (
            (said("Int4PreshuffledTensor"), ANY),
            "is of the class 'Int4PreshuffledTensor', which is not read; .*Int4Tensor",
        ),
        ((said("IntxOpaqueTensor"), ANY), "is of the class 'IntxOpaqueTensor'"),
        (({WEIGHT: "{"}, ANY), r"_weight_qdata .* is described by '\{' in its file's metadata"),
        (({WEIGHT: "[" * 10**6}, ANY), "is described by"),
        (({WEIGHT: 3}, ANY), "is described by 3"),
        (({WEIGHT: '{"_type": 3}'}, ANY), "is described by"),
        (({WEIGHT: '{"_type": "Int4Tensor", "_data": []}'}, ANY), "is described by"),
        (
            changed(PLAIN, {}, _weight_act_pre_scale=torch.ones(4)),
            r"_weight_act_pre_scale \(F32 \[4\]\) must be a number for each of",
        ),
        (changed(PLAIN, {}, _weight_act_pre_scale=torch.ones(4).int()), "_weight_act_pre_scale .* must be F32"),
        (changed(PLAIN, {"block_size": [1, 0]}), r"_weight_qdata .* has block_size \[1, 0\] in its file's metadata"),
        (changed(PLAIN, {"block_size": [2, 32]}), "has block_size"),
        (changed(PLAIN, {"block_size": [1, 16]}), r"_weight_scale .* must have shape"),
        (changed(PLAIN, {"shape": [SHAPE[0], SHAPE[1] + 2]}), r"has shape \["),
        (changed(PLAIN, {"shape": [2**40, 2**40]}), r"has shape \["),
        (changed(PLAIN, {}, _weight_zero_point=None), "_weight_zero_point is missing next to"),
        (changed(PLAIN, {}, _weight_more=torch.ones(1)), "_weight_more .* is not understood"),
        (changed(PLAIN, {}, _weight_qdata=torch.zeros(2, 4, 8).char()), "must be a matrix"),
        (changed(TILES, {"shape": [9999, 32]}), r"has shape \[9999, 32\]"),
        (changed(TILES, {}, _weight_qdata=torch.zeros(2, 2, 32, 3).int()), "must be .* in tiles"),
        (changed(TILES, {}, _weight_scale_and_zero=torch.zeros(1, 8, 2)), r"_weight_scale_and_zero .* must have shape"),
        (changed(BYTES, {"target_dtype": dtype("uint4")}), "has target_dtype"),
        (changed(BYTES, {"target_dtype": dtype("int3")}), "holds numbers from -8 to 7, 3 bits have -4 to 3"),
        (changed(BYTES, {}, _weight_scale=None), "_weight_scale is missing"),
        (changed(WORDS, {}, _weight_zero_point=torch.zeros(1, 1)), "was packed for an NPU"),
        ((said("NVFP4Tensor", block_size=32), ANY), "has block_size 32"),
        (
            (said("MXTensor", block_size=32), {**ANY, "_weight_qdata": torch.zeros(4, 4).to(torch.float8_e5m2)}),
            r"_weight_qdata \(F8_E5M2 .* must be U8 or F8_E4M3",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_the_tensor(module: tuple[dict[str, Any], Tensors], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        weight(*module)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("kind", SAMPLES)
def test_damaged_modules_are_read_or_refused(kind: str) -> None:
    samples = [SAMPLES[kind](seed) for seed in range(4)]
    readers = WeightReaders.of(CONFIG, "config.json")
    read_or_refused(random.Random(kind), ((readers.with_metadata(told), good) for told, good, _ in samples * 50))


def types(name: str, **keys: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": keys}}}


def test_what_activations_are_rounded_to_is_told() -> None:
    symmetric = {
        "act_mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
        "granularity": {"_type": "PerRow", "_data": {"dim": -1}},
    }
    rows = types("Int8DynamicActivationInt8WeightConfig", **symmetric)
    assert WeightReaders.of(rows, "x").notes == (f"quant_type: {ROWS_TOO}",)
    tensors = {"_weight_qdata": torch.zeros(4, 4).char(), "_weight_scale": torch.ones(4, 1)}
    assert read(rows, tensors).rounds_rows and not read(CONFIG, tensors).rounds_rows
    for other in (
        types("Int8DynamicActivationIntxWeightConfig"),
        types("Int8DynamicActivationInt8WeightConfig"),
        types("Int8DynamicActivationInt8WeightConfig", **symmetric | {"granularity": {"_type": "PerTensor"}}),
        types("FqnToConfig", fqn_to_config={"a": rows["quant_type"]["default"]}),
    ):
        assert (
            WeightReaders.of(other, "x").notes == (f"quant_type: {WEIGHTS_ONLY}",)
            and not read(other, tensors).rounds_rows
        )
    assert WeightReaders.of(types("Int4WeightOnlyConfig"), "x").notes == ()


def test_tiles_of_another_maker_are_refused() -> None:
    keys = {"int4_packing_format": {"_data": "TILE_PACKED_TO_4D"}, "int4_tile_packed_ntile": 16}
    with pytest.raises(ConfigError, match="'int4_tile_packed_ntile' is 16: such tiles are an AMD card's"):
        WeightReaders.of(types("Int4WeightOnlyConfig", **keys), "config.json")


def flattened(weight: Any) -> tuple[dict[str, Any], Tensors]:
    """As transformers saves them."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, told = flatten_tensor_state_dict({WEIGHT: weight})
    return told, {name.removeprefix(NAME + "."): tensor for name, tensor in tensors.items()}


def config_of(kind: str) -> Any:
    from torchao.prototype import mx_formats
    from torchao.quantization import granularity, quant_api

    name, _, bits = kind.partition(", ")
    if name.endswith("IntxWeightConfig"):
        return getattr(quant_api, name)(
            weight_dtype=getattr(torch, bits),
            weight_granularity=granularity.PerGroup(32),
            weight_mapping_type=quant_api.MappingType.ASYMMETRIC,
        )
    if name == "IntxWeightOnlyConfig":
        return quant_api.IntxWeightOnlyConfig(weight_dtype=getattr(torch, bits), granularity=granularity.PerAxis(0))
    if name.startswith("MX"):
        return mx_formats.MXDynamicActivationMXWeightConfig(
            activation_dtype=getattr(torch, bits), weight_dtype=getattr(torch, bits)
        )
    return getattr(mx_formats if name.startswith("NV") else quant_api, name)()


@pytest.mark.parametrize(
    "kind",
    [
        "Int8WeightOnlyConfig",
        "Int8DynamicActivationInt8WeightConfig",
        "Float8WeightOnlyConfig",
        "Int8DynamicActivationIntxWeightConfig, int4",
        "Int8DynamicActivationIntxWeightConfig, int3",
        "IntxWeightOnlyConfig, int8",
        "IntxWeightOnlyConfig, int2",
        "NVFP4WeightOnlyConfig",
        "MXDynamicActivationMXWeightConfig, float8_e4m3fn",
        "MXDynamicActivationMXWeightConfig, float4_e2m1fn_x2",
    ],
)
def test_what_torchao_writes(kind: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    layer = torch.nn.Sequential(torch.nn.Linear(128, 160, dtype=torch.bfloat16))
    quantization.quantize_(layer, config_of(kind))
    assert torch.equal(weight(*flattened(layer[0].weight.data)).dense(torch.bfloat16), layer[0].weight.dequantize())


@pytest.mark.parametrize("kind", ["plain", "words", "tiles"])
def test_what_torchao_packs_on_other_machines_has_these_names_and_attributes(kind: str) -> None:
    """Its own classes of what the test packed: they need a card, or its kernels, to pack by themselves."""
    quantization = pytest.importorskip("torchao.quantization")
    told, tensors, dense = SAMPLES[kind](5)
    described = json.loads(told[WEIGHT])
    made = getattr(quantization, described["_type"])(
        *tensors.values(), described["_data"]["block_size"], torch.Size(described["_data"]["shape"])
    )
    torch.testing.assert_close(weight(*flattened(made)).dense(), dense, rtol=1e-6, atol=1e-6)
