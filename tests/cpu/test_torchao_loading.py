"""torchao's checkpoints through the engine: the text of the twin whose
weights were restored by hand, and by torchao.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, write_checkpoint
from file_server import served
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_quantized_loading import FORMATS, WEIGHTS, logits, restored, write

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_model

__all__ = ["restored"]
KINDS = ("int4", "int8 and int4", "int3, embedding of int8", "MXFP4", "NVFP4")


def text(path: Path | str, dtype: str = "float32") -> str:
    with Engine(path, device="cpu", dtype=dtype, kv_tokens=256) as engine:
        return engine.generate("Once upon a time", SamplingParams(max_tokens=24, temperature=0)).text


def test_the_text_is_that_of_the_restored_twin(tmp_path: Path, restored: None) -> None:
    few, whole = write(tmp_path, *FORMATS["torchao"])
    assert text(few) == text(whole)


def test_shards_that_each_say_what_their_weights_are(tmp_path: Path, restored: None) -> None:
    """A weight's tensors may lie in one file, and what is said of it in another."""
    few, whole = write(tmp_path, *FORMATS["torchao"])
    tensors = load_file(few / WEIGHTS)
    with safe_open(few / WEIGHTS, "pt") as file:
        told = file.metadata()
    (few / WEIGHTS).unlink()
    parts = {
        f"{part}.safetensors": {
            name: tensor for name, tensor in tensors.items() if name.endswith("scale") == bool(part)
        }
        for part in (0, 1)
    }
    for (file_, held), said in zip(parts.items(), (None, told), strict=True):
        save_file(held, few / file_, said)
    (few / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {name: file_ for file_, held in parts.items() for name in held}})
    )
    assert torch.equal(logits(few), logits(whole))


def test_files_of_a_server_say_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, _ = write(tmp_path, *FORMATS["torchao"])
    monkeypatch.setenv("SGL_CACHE", str(tmp_path / "cache"))
    with served(tmp_path) as server:
        assert text(f"{server.url}/few") == text(few)


def test_a_file_that_says_nothing_or_something_else_is_refused_by_the_tensor(tmp_path: Path) -> None:
    few, _ = write(tmp_path, *FORMATS["torchao"])
    tensors, name = load_file(few / WEIGHTS), "model.layers.0.mlp.down_proj"
    save_file(tensors, few / WEIGHTS)
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: .*_weight_qdata .* its file's metadata does not say what else"
    ):
        load_model(few)
    save_file(tensors, few / WEIGHTS, {f"{name}.weight": json.dumps({"_type": "Int4MarlinTensor", "_data": {}})})
    with pytest.raises(
        CheckpointError, match=r"down_proj._weight_qdata .* is of the class 'Int4MarlinTensor', which is not read"
    ):
        load_model(few)


def config_of(kind: str) -> Any:
    from torchao import quantization
    from torchao.prototype import mx_formats
    from torchao.quantization.granularity import PerAxis, PerGroup

    if kind == "int4":
        return quantization.Int4WeightOnlyConfig(group_size=32)
    if kind == "int8 and int4":
        return quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        )
    if kind == "MXFP4":
        return mx_formats.MXDynamicActivationMXWeightConfig(
            activation_dtype=torch.float4_e2m1fn_x2, weight_dtype=torch.float4_e2m1fn_x2
        )
    if kind == "NVFP4":
        return mx_formats.NVFP4WeightOnlyConfig()
    three, eight = (
        quantization.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=grain)
        for dtype, grain in ((torch.int3, PerGroup(16)), (torch.int8, PerAxis(0)))
    )
    return quantization.FqnToConfig({"_default": three, "model.embed_tokens": eight})


def rows_in_four_bits(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As mslk has it, which torchao takes and which is not to be had without a card."""
    values = weight.float().unflatten(1, (-1, group))
    least = values.amin(2)
    scale = (values.amax(2) - least).clamp(min=1e-6) / 15
    codes = ((values - least[..., None]) / scale[..., None]).round().clamp(0, 15) - 8
    return codes.flatten(1).char(), scale.T.contiguous(), (least + 8 * scale).T.contiguous()


def twin_of(few: Path, whole: Path) -> None:
    """The weights as torchao restores them."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with safe_open(few / WEIGHTS, "pt") as file:
        weights, _ = unflatten_tensor_state_dict(load_file(few / WEIGHTS), file.metadata())
    save_file({name: _plain(weight).contiguous() for name, weight in weights.items()}, whole / WEIGHTS)
    edit_json(whole / "config.json", tie_word_embeddings="lm_head.weight" not in weights)


def _plain(weight: Any) -> torch.Tensor:
    if type(weight).__name__ != "Int4Tensor":
        return weight.dequantize() if hasattr(weight, "block_size") else weight
    codes = torch.stack((weight.qdata << 4 >> 4, weight.qdata >> 4), -1).flatten(1)  # sign and all
    scale, zero = (
        part.T.float().repeat_interleave(weight.block_size[1], 1) for part in (weight.scale, weight.zero_point)
    )
    return codes * scale + zero


@pytest.mark.parametrize("kind", KINDS)
def test_what_transformers_saves(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torchao.quantization")
    from torchao.quantization.quantize_.workflows.int4 import int4_tensor
    from transformers import AutoModelForCausalLM, TorchAoConfig

    monkeypatch.setattr(int4_tensor, "int4_row_quantize_zp", rows_in_four_bits)
    monkeypatch.setattr(int4_tensor, "pack_int4", lambda codes: codes[:, ::2] & 15 | codes[:, 1::2] << 4)
    few, whole = (write_checkpoint(tmp_path / name, tokenizer=True) for name in ("few", "whole"))
    quantization = TorchAoConfig(config_of(kind), include_input_output_embeddings="embedding" in kind)
    AutoModelForCausalLM.from_pretrained(few, quantization_config=quantization, dtype=torch.bfloat16).save_pretrained(
        few
    )
    twin_of(few, whole)
    assert (logits(few) - logits(whole)).norm() < 0.06 * logits(whole).norm()
    with Engine(few, device="cpu", dtype="bfloat16", kv_tokens=256, strict=True) as engine:
        assert engine.info()["few_bits"] and not engine.info()["slower"]
        assert any("activations are not rounded" in note for note in engine.info()["notes"]) == (
            kind in ("int8 and int4", "MXFP4")
        )
    request.getfixturevalue("restored")
    assert text(few, "bfloat16") == text(whole, "bfloat16")  # which torchao restores to
