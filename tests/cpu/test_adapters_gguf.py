"""Adapters in GGUF files, as the format's own converter writes them, against the same ones as PEFT saved them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from family_checks import prompt, reference
from gguf_convert import PERMUTED, gguf_name, packed, write_gguf, write_twin
from peft_adapters import make_adapter
from plain_adapters import write_adapter
from rig import Rig
from safetensors.torch import load_file
from test_adapters import adapted_rig, logits_with
from test_gguf_engine import file_of

from sgl.runtime import Engine
from sgl.runtime.adapters.adapter_sites import sites_of
from sgl.runtime.adapters.files.adapter_reader import AdapterReader
from sgl.runtime.errors import CheckpointError, ConfigError

PREFIX = "base_model.model."
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}, {}),
    "qwen2": ("Qwen2ForCausalLM", {}, {"lora_alpha": 3, "target_modules": ["q_proj", "v_proj", "up_proj"]}),
    "phi3": ("Phi3ForCausalLM", {"pad_token_id": 1}, {"rank_pattern": {"down_proj": 6}}),
}


def converted(
    folder: Path,
    file: Path,
    arch: str,
    config: dict[str, Any],
    edit: dict[str, torch.Tensor | None] | None = None,
    **keys: Any,
) -> Path:
    """folder: of PEFT's. edit: tensors instead, None: gone.  keys: of the file instead, with "__" for dots."""
    told, tensors = json.loads((folder / "adapter_config.json").read_text()), {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, _, end = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        ours = gguf_name(f"{module}.weight", arch)
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(ours.split(".")[2])
        if end == "lora_B" and arch in PERMUTED and heads:
            tensor = (
                tensor.view(config[heads], 2, len(tensor) // config[heads] // 2, -1)
                .transpose(1, 2)
                .reshape(tensor.shape)
            )
        tensors[f"{ours}.{end.lower()}"] = tensor
    tensors = {name: tensor for name, tensor in (tensors | (edit or {})).items() if tensor is not None}
    metadata = {
        "general.architecture": arch,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(told["lora_alpha"]),
    }
    return write_gguf(
        file,
        metadata | {key.replace("__", "."): value for key, value in keys.items()},
        {name: packed(tensor) for name, tensor in tensors.items()},
    )


def reader_for(path: Path) -> AdapterReader:
    model = Rig(path).model
    return AdapterReader(model.config, sites_of(model.config), torch.float32)


@pytest.mark.parametrize("arch", CASES)
def test_a_converted_adapter_is_the_one_that_peft_saved(arch, tmp_path):
    architecture, keys, lora = CASES[arch]
    model = reference(architecture, num_hidden_layers=2, **keys)
    model.save_pretrained(tmp_path / "base")
    make_adapter(model, tmp_path / "adapter", **lora)
    reader, file = (
        reader_for(tmp_path / "base"),
        converted(tmp_path / "adapter", tmp_path / "it.gguf", arch, model.config.to_dict()),
    )
    found, wanted = reader.read(file), reader.read(tmp_path / "adapter")
    assert found.digest == wanted.digest and torch.equal(found.memory, wanted.memory)


def test_what_is_not_supported_is_refused_by_name(tmp_path):
    model = reference("LlamaForCausalLM", num_hidden_layers=2)
    model.save_pretrained(tmp_path / "base")
    make_adapter(model, tmp_path / "adapter", target_modules=["q_proj"])
    reader, config, q = reader_for(tmp_path / "base"), model.config.to_dict(), "blk.0.attn_q.weight"
    cases: dict[str, tuple[dict[str, torch.Tensor | None], dict[str, Any]]] = {
        "holds no LoRA adapter": ({}, {"general__type": "model"}),
        "general.architecture='nothing' is not supported": ({}, {"general__architecture": "nothing"}),
        "the adapter is for Qwen2ForCausalLM": ({}, {"general__architecture": "qwen2"}),
        "adapter.alora.invocation_tokens": ({}, {"adapter__alora__invocation_tokens": [3]}),
        "no half of a pair": ({"blk.0.attn_norm.weight": torch.ones(64)}, {}),
        "lacks the other half": ({f"{q}.lora_b": None}, {}),
        "attention and of dense": (
            {"token_embd.weight.lora_a": torch.ones(4, 320), "token_embd.weight.lora_b": torch.ones(64, 4)},
            {},
        ),
        "asks for floats": ({f"{q}.lora_a": torch.ones(3, 64)}, {}),
        "holds nan": ({f"{q}.lora_a": torch.full((4, 64), torch.nan)}, {}),
        "has no place": (
            {"blk.0.nothing.weight.lora_a": torch.ones(4, 64), "blk.0.nothing.weight.lora_b": torch.ones(64, 4)},
            {},
        ),
    }
    for message, (edit, keys) in cases.items():
        with pytest.raises((CheckpointError, ConfigError), match=message):
            reader.read(converted(tmp_path / "adapter", tmp_path / "it.gguf", "llama", config, edit, **keys))
    plain = converted(tmp_path / "adapter", tmp_path / "it.gguf", "llama", config, adapter__lora__alpha=0.0)
    assert set(reader.read(plain).scales.ravel()) == {0.0, 1.0}  # without alpha nothing is scaled


BASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = CASES | {
    "granite": ("GraniteForCausalLM", {}, {"use_rslora": True}),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {"num_hidden_layers": 5},
        {},
    ),  # one layer turns nothing, and its rows lie as those of the others
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "n_embd": 64,
            "n_head": 4,
            "n_positions": 256,
            **dict.fromkeys(
                (
                    "hidden_size",
                    "intermediate_size",
                    "num_attention_heads",
                    "num_key_value_heads",
                    "max_position_embeddings",
                ),
                ...,
            ),
        },
        {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("arch", BASES)
def test_a_base_that_is_a_gguf_file_takes_peft_adapters_and_those_of_its_own_format(arch: str, tmp_path: Path) -> None:
    """Logits are those of the same adapter on the checkpoint that the file was made of, which are PEFT's."""
    architecture, keys, lora = BASES[arch]
    model = reference(architecture, **{"num_hidden_layers": 2} | keys)
    model.save_pretrained(tmp_path / "base")
    make_adapter(model, tmp_path / "adapter", **lora)
    rig, twin = Rig(tmp_path / "base"), Rig(write_twin(tmp_path / "base", tmp_path / "twin.gguf", arch))
    adapted_rig(rig, tmp_path / "adapter")
    _, reader = adapted_rig(twin, tmp_path / "adapter", file=tmp_path / "twin.gguf")
    tokens = prompt(320)
    wanted, base = logits_with(rig, tokens, 0), logits_with(rig, tokens, -1)
    assert (logits_with(twin, tokens, -1) - base).abs().max() < 2e-5 * base.abs().max()
    assert (logits_with(twin, tokens, 0) - wanted).abs().max() < 2e-5 * wanted.abs().max() < (wanted - base).abs().max()
    if arch in CASES:
        file = converted(tmp_path / "adapter", tmp_path / "it.gguf", arch, model.config.to_dict())
        assert reader.read(file).digest == reader.read(tmp_path / "adapter").digest


def test_an_engine_of_a_gguf_file_says_what_it_does_not_read(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", tokenizer=True)
    plain, whole = write_adapter(base, tmp_path / "plain"), tmp_path / "whole"
    make_adapter(reference("LlamaForCausalLM", num_hidden_layers=3), whole, use_dora=True)
    texts = []
    for path in (base, file_of(base)):
        with Engine(path, device="cpu", dtype="float32", kv_tokens=512, threads=1, adapters={"plain": plain}) as engine:
            texts.append(
                engine.generate("The quick", adapter="plain", max_tokens=8, temperature=0, ignore_eos=True).token_ids
            )
    assert texts[0] == texts[1]
    with (
        pytest.raises(CheckpointError, match="use_dora=True is not supported here"),
        Engine(path, device="cpu", kv_tokens=512, adapters={"dora": whole}),
    ):
        pass
