"""OPT's build and Phi's against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_edits import refused, rewrite
from family_checks import check_checkpoint, check_family, reference
from family_cover import covered

FAIR = {"intermediate_size": ..., "num_key_value_heads": ..., "initializer_range": ..., "init_std": 0.2}
OPT = FAIR | {"ffn_dim": 96}
XGLM = OPT | {"num_hidden_layers": ..., "num_layers": 4, "num_attention_heads": ..., "attention_heads": 4}
PLAIN = {"num_key_value_heads": ...}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "opt": ("OPTForCausalLM", OPT),
    "opt-350m": ("OPTForCausalLM", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt-bare": (
        "OPTForCausalLM",
        OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    ),
    "opt-unnormed": ("OPTForCausalLM", OPT | {"_remove_final_layer_norm": True, "tie_word_embeddings": False}),
    "biogpt": ("BioGptForCausalLM", PLAIN),
    "biogpt-unscaled": (
        "BioGptForCausalLM",
        PLAIN | {"scale_embedding": False, "hidden_act": "relu", "layer_norm_eps": 0.1},
    ),
    "xglm": ("XGLMForCausalLM", XGLM),
    "xglm-unscaled": (
        "XGLMForCausalLM",
        XGLM | {"scale_embedding": False, "activation_function": "relu", "pad_token_id": 0},
    ),
    "phi": ("PhiForCausalLM", {}),
    "phi-normed": (
        "PhiForCausalLM",
        {"qk_layernorm": True, "partial_rotary_factor": 0.25, "tie_word_embeddings": True},
    ),
    "persimmon": ("PersimmonForCausalLM", PLAIN),
    "persimmon-unnormed": ("PersimmonForCausalLM", PLAIN | {"qk_layernorm": False, "hidden_act": "gelu"}),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


def test_files_of_opt_without_the_outer_prefix(tmp_path: Path) -> None:
    model = reference("OPTForCausalLM", **OPT)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    check_checkpoint(model, tmp_path)


def test_a_saved_table_of_sines_is_left_aside(tmp_path: Path) -> None:
    model = reference("XGLMForCausalLM", **XGLM)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"model.embed_positions.weights": torch.ones(258, 64)})
    check_checkpoint(model, tmp_path)


REFUSED: list[tuple[str, dict[str, Any], str, object]] = [
    ("OPTForCausalLM", OPT, "activation_function", "tanh"),
    ("OPTForCausalLM", OPT, "word_embed_proj_dim", 0),
    ("XGLMForCausalLM", XGLM, "pad_token_id", 2),
    ("XGLMForCausalLM", XGLM, "max_position_embeddings", 2**30),
    ("XGLMForCausalLM", XGLM, "add_cross_attention", True),
    ("PhiForCausalLM", {}, "qk_layernorm", "yes"),
    ("PhiForCausalLM", {}, "sliding_window", 9),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_what_is_not_computed_is_refused(case: tuple[str, dict[str, Any], str, object], tmp_path: Path) -> None:
    architecture, keys, key, value = case
    reference(architecture, **keys).config.save_pretrained(tmp_path)
    rewrite(tmp_path, architectures=[architecture])
    refused(tmp_path, key, value)
