"""Keys that other tools left in config.json, in tiny checkpoints of every family that transformers has a class for."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import edit_json, write_checkpoint
from family_checks import SIZES

import sgl
from sgl.runtime.errors import ConfigError
from sgl.runtime.models.families import FAMILIES, read_model
from sgl.runtime.models.spec.unused_config_keys import declared, known_keys, stray_keys

LEFT = {
    "_model_name_or_path": "you/yours",
    "mlflow_run": "a1",
    "n_inner_old": 64,
    "is_lora_merged": True,
    "window_of_training": 7,
}
NAMES = sorted(name for name in FAMILIES if hasattr(transformers, name))
FOREIGN = {  # keys of other families, which a reader of several names might take for its own
    "GPT2LMHeadModel": {
        "intermediate_size": 48,
        "num_key_value_heads": 1,
        "ffn_dim": 24,
        "rope_theta": 5e5,
        "hidden_act": "relu",
    },
    "GPTNeoXForCausalLM": {"num_key_value_heads": 1, "n_inner": 48, "activation_function": "relu"},
    "OPTForCausalLM": {"intermediate_size": 48, "num_key_value_heads": 1, "n_embd": 3},
    "LlamaForCausalLM": {
        "n_inner": 48,
        "attention_multiplier": 0.3,
        "logit_scale": 0.5,
        "final_logit_softcapping": 30.0,
        "qk_layernorm": True,
    },
    "Qwen3ForCausalLM": {"n_head": 2, "shared_expert_intermediate_size": 48, "logits_scaling": 8.0, "num_experts": 8},
    "GemmaForCausalLM": {"query_pre_attn_scalar": 4, "attn_logit_softcapping": 50.0, "qkv_bias": True},
    "FalconForCausalLM": {"num_key_value_heads": 1, "n_inner": 48, "rotary_pct": 0.25},
    "BloomForCausalLM": {"intermediate_size": 48, "num_key_value_heads": 2, "rope_theta": 1e6},
}


def written(architecture: str) -> dict[str, Any]:
    kind = getattr(transformers, architecture).config_class
    return json.loads(kind().to_json_string(use_diff=False)) | {"architectures": [architecture]}


def as_read(values: dict[str, Any]) -> Any:
    model = read_model(values)
    return dataclasses.replace(model, notes=(), stray=()), model.stray


@pytest.mark.parametrize("architecture", NAMES)
def test_what_a_tool_left_changes_nothing_and_is_told(architecture: str) -> None:
    values = written(architecture)
    inner = {"text_config": values["text_config"] | LEFT} if "text_config" in values else LEFT
    try:
        plain, _ = as_read(values)
    except ConfigError as error:  # the defaults of some classes are no model of ours
        with pytest.raises(ConfigError) as again:
            read_model(values | inner)
        assert str(again.value) == str(error)
        return
    assert as_read(values | inner) == (plain, tuple(sorted(LEFT)))
    assert read_model(values | inner).notes[-1].count("left aside") == 1


@pytest.mark.parametrize("architecture", FOREIGN)
def test_keys_of_other_families_are_not_taken(architecture: str) -> None:
    if architecture not in FAMILIES:
        pytest.skip(f"{architecture} is no family of ours")
    values, foreign = written(architecture), FOREIGN[architecture]
    plain, _ = as_read(values)
    assert as_read(values | foreign) == (plain, tuple(sorted(foreign)))


def test_what_transformers_computes_with_such_keys() -> None:
    """The logits of a tiny GPT-2 and a tiny GPT-NeoX are the same with foreign keys as without, there and here."""
    for architecture in ("GPT2LMHeadModel", "GPTNeoXForCausalLM"):
        own = getattr(transformers, architecture)
        made = []
        for keys in ({}, FOREIGN[architecture]):
            torch.manual_seed(1)
            model = own(own.config_class(vocab_size=50, **SIZES_OF[architecture], **keys)).eval()
            made.append(model(torch.arange(9)[None]).logits)
        assert torch.equal(*made)


SIZES_OF = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
    "GPTNeoXForCausalLM": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    },
}


def test_keys_that_the_class_has_or_that_the_code_reads_stay_errors() -> None:
    llama = SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    with pytest.raises(ConfigError, match=r"'sliding_window' .* is not understood"):
        read_model(llama | {"sliding_window": 8})  # caches read it of every configuration
    with pytest.raises(ConfigError, match=r"rope_type='dynamo'"):
        read_model(llama | {"rope_scaling": {"rope_type": "dynamo"}})
    gpt2 = written("GPT2LMHeadModel")
    with pytest.raises(ConfigError, match=r"scale_attn_by_inverse_layer_idx"):
        read_model(gpt2 | {"scale_attn_by_inverse_layer_idx": "x"})


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "of_nobody"},
        {"model_type": None},
        {"model_type": "a" * 10**5},
        {"model_type": "../llama"},
        {"architectures": ["InternLM3ForCausalLM"]},
    ],
)
def test_without_a_class_of_transformers_every_key_counts(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'new_trick' .* is not understood"):
        read_model(SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "new_trick": 1} | changes)


@pytest.mark.parametrize("architecture", NAMES)
def test_the_source_says_no_more_than_the_class(architecture: str) -> None:
    """Looking through the source only saves an import."""
    kind = getattr(transformers, architecture).config_class.model_type
    known = known_keys(kind)
    if known is None:  # a wrapper, whose flat keys are those of its text model
        assert "text_config" in getattr(transformers, architecture).config_class.sub_configs
        assert stray_keys({"model_type": kind}, frozenset({"vocab_size", "no_such_key"})) == frozenset()
        return
    assert declared(kind) <= known
    assert stray_keys({"model_type": kind}, declared(kind) | {"no_such_key"}) == {"no_such_key"}


@pytest.mark.whole
def test_a_config_as_transformers_writes_it_does_not_import_it(tmp_path: Path) -> None:
    values = json.loads(transformers.LlamaConfig(**SIZES).to_json_string(use_diff=False)) | {
        "architectures": ["LlamaForCausalLM"]
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    code = (
        "import sys; from sgl.runtime.loading.describe_model import describe; describe(sys.argv[1]); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_an_engine_notes_such_a_key_and_refuses_it_where_it_is_strict(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tokenizer=True)
    edit_json(tmp_path / "config.json", _model_name_or_path="you/yours")
    with sgl.Engine(str(tmp_path), device="cpu") as engine:
        assert any("'_model_name_or_path' left aside" in note for note in engine.info()["notes"])
    with pytest.raises(ConfigError, match=r"Engine\(strict=True\): .*'_model_name_or_path'"):
        sgl.Engine(str(tmp_path), device="cpu", strict=True)
