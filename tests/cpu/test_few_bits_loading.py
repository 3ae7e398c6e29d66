"""Checkpoints in few bits, end to end: logits and text of the twin whose weights were restored by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from torch import Tensor

from sgl.runtime import Engine
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import load_model
from sgl.runtime.quantization.grouped import Grouped

WEIGHTS = "model.safetensors"
Writer = Callable[[Tensor, torch.Generator], tuple[dict[str, Tensor], Grouped]]  # what a format stores of a weight, and what that means


def fp8_blocks(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], Grouped]:
    scale = torch.rand(-(-weight.shape[0] // 32), -(-weight.shape[1] // 32), generator=generator) * 0.01 + 0.001
    rows = scale.repeat_interleave(32, 0)[: len(weight)]
    codes = (weight / rows.repeat_interleave(32, 1)[:, : weight.shape[1]]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, Grouped.float8(codes, rows, 32)


def fp8_outputs(weight: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], Grouped]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, Grouped.float8(codes, scale, weight.shape[1])


FORMATS: dict[str, tuple[dict[str, object], Writer]] = {
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}, fp8_blocks),
    "fp8 outputs": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, fp8_outputs),
}


def write(path: Path, method: dict[str, object], writer: Writer, leave: tuple[str, ...] = (), **keys: object) -> tuple[Path, Path]:
    """A checkpoint in few bits, but for projections that end with a name in `leave`; and its dense twin."""
    whole = write_checkpoint(path / "twin", tokenizer=True, **keys)
    few = write_checkpoint(path / "few", tokenizer=True, **keys)
    edit_json(few / "config.json", quantization_config=method)
    tensors, generator = load_file(few / WEIGHTS), torch.Generator().manual_seed(1)
    dense = dict(tensors)
    for name in [name for name in tensors if name.endswith("proj.weight") and not name.endswith(leave or ("-",))]:
        stored, means = writer(tensors.pop(name), generator)
        tensors |= {name.removesuffix("weight") + suffix: tensor.contiguous() for suffix, tensor in stored.items()}
        dense[name] = means.dense()
    save_file(tensors, few / WEIGHTS)
    save_file(dense, whole / WEIGHTS)
    return few, whole


def logits(path: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    return Rig(path, dtype=dtype).step([(Row([5, 6, 7, 300, 11]), 5)])[0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("leave", [(), ("k_proj.weight", "layers.1.mlp.down_proj.weight")])
def test_logits_are_those_of_the_restored_twin(name: str, leave: tuple[str, ...], tmp_path: Path) -> None:
    """Where the headers say that a projection is plain, whatever the configuration's lists say."""
    few, whole = write(tmp_path, *FORMATS[name], leave=leave)
    assert torch.equal(logits(few), logits(whole))
    assert torch.equal(logits(few, torch.bfloat16), logits(whole, torch.bfloat16))


def test_what_became_of_the_weights_is_told(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["fp8 blocks"])
    (told,) = load_model(few).few_bits
    assert str(told).startswith("12 projections of FP8, blocks of 32 x 32: restored to float32: no kernel on cpu")


def test_shards_may_part_a_weight_from_its_scale(tmp_path: Path) -> None:
    few, whole = write(tmp_path, *FORMATS["fp8 blocks"])
    tensors = load_file(few / WEIGHTS)
    (few / WEIGHTS).unlink()
    parts = {f"{part}.safetensors": {name: tensor for name, tensor in tensors.items() if name.endswith("_inv") == bool(part)} for part in (0, 1)}
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
    with Engine(few, device="cpu", dtype="float32", kv_tokens=256) as engine:
        (told,) = engine.info()["few_bits"]
        assert told in engine.info()["slower"]
    with pytest.raises(ConfigError, match=r"strict=True\): .*restored to float32"):
        Engine(few, device="cpu", dtype="float32", kv_tokens=256, strict=True)
