"""Gemma 4 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import edit_json
from family_checks import check_checkpoint, check_family, reference

from sgl.runtime.errors import ConfigError
from sgl.runtime.loading import load_config

SIZES: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 6,
    "sliding_window": 9,
    "vocab_size_per_layer_input": 320,
    "hidden_size_per_layer_input": 8,
    "per_layer_config": {2: {"head_dim": 32}, 5: {"head_dim": 32}},
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
}
TWO_HEADS = {index: {"head_dim": 32, "num_key_value_heads": 1} for index in (2, 5)}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "without embeddings of layers": {"hidden_size_per_layer_input": 0},
    "shared keys": {"num_kv_shared_layers": 3},
    "shared keys, wide": {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "values are keys": {"attention_k_eq_v": True, "per_layer_config": TWO_HEADS},
    "values are keys, biases": {"attention_k_eq_v": True, "attention_bias": True, "num_kv_shared_layers": 1},
    "capped, untied": {"final_logit_softcapping": 2.0, "tie_word_embeddings": False},
    "rope": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.5,
                "rope_theta": 3e3,
                "factor": 2.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        }
    },
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_a_variant_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    check_family("Gemma4ForCausalLM", tmp_path, tolerance=5e-5, **SIZES | CASES[case])


def test_heads_of_256_and_512(tmp_path: Path) -> None:
    wide = {index: {"head_dim": 512} for index in (2, 5)}
    check_family("Gemma4ForCausalLM", tmp_path, tolerance=5e-5, **SIZES | {"head_dim": 256, "per_layer_config": wide})


def test_the_keys_that_were_before_per_layer_config(tmp_path: Path) -> None:
    model = reference("Gemma4ForCausalLM", **SIZES | {"attention_k_eq_v": True, "per_layer_config": TWO_HEADS})
    model.save_pretrained(tmp_path)
    edit_json(
        tmp_path / "config.json",
        per_layer_config=...,
        global_head_dim=32,
        num_global_key_value_heads=1,
        rope_parameters=None,
    )
    check_checkpoint(model, tmp_path, 5e-5)


def test_keys_of_layers_that_read_those_of_others_may_be_in_the_file(tmp_path: Path) -> None:
    """As in the published files."""
    import safetensors.torch

    model = reference("Gemma4ForCausalLM", **SIZES | {"num_kv_shared_layers": 2})
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name in ("k_proj", "v_proj", "k_norm"):
        tensors[f"model.layers.5.self_attn.{name}.weight"] = tensors[f"model.layers.0.self_attn.{name}.weight"].clone()
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    check_checkpoint(model, tmp_path, 5e-5)


REFUSED = [
    ({"enable_moe_block": True}, "enable_moe_block=True is not supported"),
    ({"num_kv_shared_layers": 6}, "num_kv_shared_layers=6 must be from 0 to 5"),
    ({"num_kv_shared_layers": 4}, "layers of full_attention read the keys"),
    ({"per_layer_config": {"9": {"head_dim": 32}}}, "per_layer_config holds '9'"),
    ({"per_layer_config": {"2": {"hidden_size": 32}}}, "per_layer_config holds '2'.*head_dim and num_key_value_heads"),
    ({"per_layer_config": {"2": {"num_key_value_heads": 3}}}, "4 query heads cannot share 3 KV heads"),
    ({"rope_parameters": {"rope_type": "default"}}, "must have an object for each kind"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    reference("Gemma4ForCausalLM", **SIZES).config.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", architectures=["Gemma4ForCausalLM"], **changes)
    with pytest.raises(ConfigError, match=message):
        assert load_config(tmp_path).attention
