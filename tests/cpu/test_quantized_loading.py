"""Checkpoints in few bits, end to end: logits and text of the twin whose weights were restored by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_readers_gptq import along_inputs, along_outputs, awq_words
from test_readers_packed import packed

from sgl.runtime import Engine
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading import load_model
from sgl.runtime.quantization import quantized_transform
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

WEIGHTS = "model.safetensors"
Writer = Callable[
    [Tensor, torch.Generator], tuple[dict[str, Tensor], QuantizedWeight]
]  # what a format stores of a weight, and what that means


def fp8_blocks(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    scale = torch.rand(-(-weight.shape[0] // 32), -(-weight.shape[1] // 32), generator=generator) * 0.01 + 0.001
    rows = scale.repeat_interleave(32, 0)[: len(weight)]
    codes = (weight / rows.repeat_interleave(32, 1)[:, : weight.shape[1]]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, QuantizedWeight.float8(codes, rows, 32)


def fp8_outputs(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, QuantizedWeight.float8(codes, scale, weight.shape[1])


def gptq(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    """Ordered by activation, with the biases of zeros that its writers leave."""
    (out, inputs), groups = weight.shape, weight.shape[1] // 32
    codes = torch.randint(0, 16, (inputs, out), generator=generator)
    zero, scale = (
        torch.randint(1, 16, (groups, out), generator=generator),
        (torch.rand(groups, out, generator=generator) * 0.05).half(),
    )
    group = (
        torch.arange(inputs)[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))] // 32
    )  # of what all of q, k, v take
    stored = {
        "qweight": along_inputs(codes, 4),
        "qzeros": along_outputs(zero - 1, 4),
        "scales": scale,
        "g_idx": group.int(),
        "bias": torch.zeros(out).half(),
    }
    order = group.argsort(stable=True)
    return stored, QuantizedWeight(codes.T[:, order].byte(), scale.T, 32, zero=zero.T, order=order)


def awq(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    (out, inputs), groups = weight.shape, weight.shape[1] // 32
    codes = torch.randint(0, 16, (inputs, out), generator=generator)
    zero, scale = (
        torch.randint(0, 16, (groups, out), generator=generator),
        (torch.rand(groups, out, generator=generator) * 0.05).half(),
    )
    return {"qweight": awq_words(codes), "qzeros": awq_words(zero), "scales": scale}, QuantizedWeight(
        codes.T.byte(), scale.T, 32, zero=zero.T
    )


def pack_quantized(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    out, inputs = weight.shape
    codes = torch.randint(0, 16, (out, inputs), generator=generator)
    scale = (torch.rand(out, inputs // 32, generator=generator) * 0.05).bfloat16()
    return {
        "weight_packed": packed(codes, 4, True),
        "weight_scale": scale,
        "weight_shape": torch.tensor([out, inputs]),
    }, QuantizedWeight(codes.byte(), scale, 32, zero=8.0)


def int8_outputs(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    codes, scale = (
        torch.randint(-128, 128, weight.shape, generator=generator, dtype=torch.int8),
        torch.rand(len(weight), 1, generator=generator) * 0.003,
    )
    return {"weight": codes, "weight_scale": scale}, QuantizedWeight(
        (codes.short() + 128).byte(), scale, weight.shape[1], 256, zero=128.0
    )


def nf4(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    """Blocks run over the rows' ends."""
    out, inputs = weight.shape
    codes, table = (
        torch.randint(0, 16, (out * inputs,), generator=generator),
        torch.randn(16, generator=generator).sort().values,
    )
    absmax = torch.rand(-(-len(codes) // 64), generator=generator) * 0.2
    state = torch.tensor(
        list(json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [out, inputs]}).encode()),
        dtype=torch.uint8,
    )
    stored = {
        "weight": (codes[::2] << 4 | codes[1::2]).byte()[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": table,
    }
    spread = absmax.repeat_interleave(64)[: len(codes)].view(out, inputs)
    return {**stored, "weight.quant_state.bitsandbytes__nf4": state}, QuantizedWeight(
        codes.byte().view(out, inputs), spread, 1, table=table
    )


def torchao(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], QuantizedWeight]:
    """Its plain int4, whose zeros are added behind the scale."""
    out, inputs = weight.shape
    q = torch.randint(-8, 8, (out, inputs), generator=generator)
    scale, zero = ((torch.rand(inputs // 32, out, generator=generator) * size).bfloat16() for size in (0.05, 0.02))
    stored = {
        "_weight_qdata": (q[:, ::2] & 15 | (q[:, 1::2] & 15) << 4).byte().view(torch.int8),
        "_weight_scale": scale,
        "_weight_zero_point": zero,
    }
    return stored, QuantizedWeight((q + 8).byte(), scale.T, 32, zero=8.0, offset=zero.T)


def beside(method: dict[str, object], shape: torch.Size) -> str | None:
    """What the file says of a weight."""
    said = {
        "_type": "Int4Tensor",
        "_data": {"block_size": [1, 32], "shape": list(shape)},
        "_tensor_data_names": ["qdata", "scale", "zero_point"],
    }
    return json.dumps(said) if method["quant_method"] == "torchao" else None


PACKED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FORMATS: dict[str, tuple[dict[str, object], Writer]] = {
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}, fp8_blocks),
    "fp8 outputs": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8_outputs),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}, gptq),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": PACKED}},
        },
        pack_quantized,
    ),
    "int8": (
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
                }
            },
        },
        int8_outputs,
    ),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, nf4),
    "torchao": (
        {
            "quant_method": "torchao",
            "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}}},
        },
        torchao,
    ),
}


def write(
    path: Path, method: dict[str, object], writer: Writer, leave: tuple[str, ...] = (), **keys: object
) -> tuple[Path, Path]:
    """A checkpoint in few bits, but for projections that end with a name in `leave`; and its dense twin."""
    whole = write_checkpoint(path / "twin", tokenizer=True, **keys)
    few = write_checkpoint(path / "few", tokenizer=True, **keys)
    edit_json(few / "config.json", quantization_config=method)
    tensors, generator = load_file(few / WEIGHTS), torch.Generator().manual_seed(1)
    dense, told = dict(tensors), dict[str, str | None]()
    for name in [name for name in tensors if name.endswith("proj.weight") and not name.endswith(leave or ("-",))]:
        stored, means = writer(tensors.pop(name), generator)
        tensors |= {name.removesuffix("weight") + suffix: tensor.contiguous() for suffix, tensor in stored.items()}
        dense[name] = means.dense()
        told[name] = beside(method, dense[name].shape)
    save_file(tensors, few / WEIGHTS, {name: text for name, text in told.items() if text is not None})
    save_file(dense, whole / WEIGHTS)
    return few, whole


def logits(path: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    return Rig(path, dtype=dtype).step([(Row([5, 6, 7, 300, 11]), 5)])[0]


needs_product = pytest.mark.skipif(
    not (cpu_kernels.kernels and cpu_kernels.kernels.INT4), reason="this CPU has no product of few bits"
)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no kernel took few bits."""
    monkeypatch.setattr(quantized_transform, "keep_quantized", lambda codes, layer: "the test restores them")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("leave", [(), ("k_proj.weight", "layers.1.mlp.down_proj.weight")])
def test_logits_are_those_of_the_restored_twin(
    name: str, leave: tuple[str, ...], tmp_path: Path, restored: None
) -> None:
    """Where the headers say that a projection is plain, whatever the configuration's lists say."""
    few, whole = write(tmp_path, *FORMATS[name], leave=leave)
    assert torch.equal(logits(few), logits(whole))
    assert torch.equal(logits(few, torch.bfloat16), logits(whole, torch.bfloat16))


def test_sizes_of_a_weight_that_its_format_keeps_apart_must_be_the_place_s(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["nf4"])
    tensors, name = load_file(few / WEIGHTS), "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(tensors[name].tolist()))
    tensors[name] = torch.tensor(list(json.dumps(state | {"shape": state["shape"][::-1]}).encode()), dtype=torch.uint8)
    save_file(tensors, few / WEIGHTS)
    with pytest.raises(
        CheckpointError, match=r"up_proj.weight is \[64, 96\] by its .*nf4.*, config.json asks for \[96, 64\]"
    ):
        load_model(few)


@pytest.mark.skipif(not (cpu_kernels.kernels and cpu_kernels.kernels.VNNI), reason="this CPU has no product of int8")
def test_eight_bits_with_a_scale_an_output_are_kept(tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS["int8"])
    (told,) = load_model(few).few_bits
    assert told.by == "Int8BlockedLinear" and told.why is None and told.count == 12
    found, expected = logits(few), logits(whole)
    assert (found - expected).norm() < 0.002 * expected.norm()


@needs_product
@pytest.mark.parametrize("name", ["fp8 blocks", "fp8 outputs", "nf4"])
def test_small_floats_are_kept_and_logits_are_those_of_the_twin(name: str, tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS[name])
    (told,) = load_model(few).few_bits
    assert told.by == "FloatBlockedLinear" and told.why is None and told.count == 12
    torch.testing.assert_close(logits(few), logits(whole), rtol=1e-4, atol=1e-4)


@needs_product
def test_a_plain_piece_leaves_the_others_in_few_bits(tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS["fp8 blocks"], leave=("k_proj.weight", "up_proj.weight"))
    told = {(each.count, each.format, each.why) for each in load_model(few).few_bits}
    assert told == {(6, "FP8, blocks of 32 x 32", None), (6, "FP8, blocks of 32 x 32 and plain rows", None)}
    torch.testing.assert_close(logits(few), logits(whole), rtol=1e-4, atol=1e-4)


@needs_product
@pytest.mark.parametrize("name", ["gptq", "awq", "compressed-tensors", "torchao"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_bits_are_kept_and_logits_differ_by_the_rounding_of_states_alone(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    few, whole = write(tmp_path, *FORMATS[name])
    (told,) = load_model(few, dtype).few_bits
    assert told.by == "Int4BlockedLinear" and told.why is None and told.count == 12
    found, expected = logits(few, dtype), logits(whole)
    assert (found - expected).norm() < 0.06 * expected.norm()
    bytes_ = [load_model(path, dtype).layers[1].mixer.qkv.weight.nbytes for path in (few, whole)]
    assert bytes_[0] < bytes_[1] * (0.2 if dtype == torch.float32 else 0.4)


def test_a_bias_that_is_not_zero_is_refused_where_the_model_has_none(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["gptq"])
    tensors = load_file(few / WEIGHTS)
    tensors["model.layers.2.self_attn.v_proj.bias"][3] = 1.0
    save_file(tensors, few / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"'model\.layers\.2\.self_attn\.v_proj\.bias' has no place"):
        load_model(few)


def test_what_became_of_the_weights_is_told(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["fp8 blocks"])
    (told,) = load_model(few, torch.float16).few_bits
    assert str(told).startswith(
        "12 projections of FP8, blocks of 32 x 32: restored to float16: no kernel on cpu multiplies float16"
    )


def test_scales_of_activations_are_not_used_and_told(tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS["fp8 blocks"])
    save_file(load_file(few / WEIGHTS) | {"model.layers.0.self_attn.k_proj.input_scale": torch.ones(1)}, few / WEIGHTS)
    notes = [load_model(path).config.notes for path in (few, whole)]
    assert [sum("scales of activations" in note and "not used" in note for note in found) for found in notes] == [1, 0]


def test_shards_may_part_a_weight_from_its_scale(tmp_path: Path, restored: None) -> None:
    few, whole = write(tmp_path, *FORMATS["fp8 blocks"])
    tensors = load_file(few / WEIGHTS)
    (few / WEIGHTS).unlink()
    parts = {
        f"{part}.safetensors": {name: tensor for name, tensor in tensors.items() if name.endswith("_inv") == bool(part)}
        for part in (0, 1)
    }
    for file, held in parts.items():
        save_file(held, few / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    (few / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(logits(few), logits(whole))


def test_a_weight_without_its_scale_is_refused_by_name(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["fp8 blocks"])
    tensors = load_file(few / WEIGHTS)
    del tensors["model.layers.1.self_attn.k_proj.weight_scale_inv"]
    save_file(tensors, few / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.k_proj"):
        load_model(few)


def test_strict_refuses_weights_that_are_restored(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["fp8 blocks"])
    with Engine(few, device="cpu", dtype="float32", kv_tokens=256, weights="int8") as engine:
        assert any("activations are not rounded" in note for note in engine.info()["notes"])
        (told,) = engine.info()["few_bits"]
        assert told in engine.info()["slower"]
    with pytest.raises(ConfigError, match=r"strict=True\): .*restored to float32"):
        Engine(few, device="cpu", dtype="float32", kv_tokens=256, weights="int8", strict=True)
