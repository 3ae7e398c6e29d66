"""GPT-2 and its descendants against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_edits import refused, rewrite
from family_checks import check_checkpoint, check_family, reference
from family_cover import covered

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_model

OWN = {"intermediate_size": ..., "num_key_value_heads": ...}
NEO = OWN | {"num_heads": 4, "num_layers": 4, "window_size": 9}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", OWN | {"n_inner": 96}),
    "gpt2-by-depth": (
        "GPT2LMHeadModel",
        OWN | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "gpt2-without-scale": (
        "GPT2LMHeadModel",
        OWN | {"scale_attn_weights": False, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", OWN | {"n_inner": 96}),
    "gpt_bigcode-heads": ("GPTBigCodeForCausalLM", OWN | {"multi_query": False, "scale_attn_weights": False}),
    "gpt_neo": ("GPTNeoForCausalLM", NEO | {"attention_types": [[["global", "local"], 2]]}),
    "gpt_neo-mixed": (
        "GPTNeoForCausalLM",
        NEO | {"attention_types": [[["local"], 1], [["global"], 3]], "intermediate_size": 96},
    ),
    "gptj": ("GPTJForCausalLM", OWN | {"rotary_dim": 8, "n_inner": 96}),
    "gptj-tied": ("GPTJForCausalLM", OWN | {"rotary_dim": 16, "tie_word_embeddings": True}),
    "codegen": ("CodeGenForCausalLM", OWN | {"num_attention_heads": 8, "rotary_dim": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", {"num_key_value_heads": ...}),
    "gpt_neox-in-turn": (
        "GPTNeoXForCausalLM",
        {"num_key_value_heads": ..., "use_parallel_residual": False, "attention_bias": False, "rotary_pct": 0.5},
    ),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


def test_the_first_files_have_no_prefix_and_hold_masks(tmp_path: Path) -> None:
    model = reference("GPT2LMHeadModel", **OWN)
    model.save_pretrained(tmp_path)
    masks = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    rewrite(
        tmp_path,
        lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()} | masks,
    )
    check_checkpoint(model, tmp_path)


MASKS = {
    "GPTNeoForCausalLM": ("transformer.h.1.attn.attention.bias", NEO | {"attention_types": [[["global"], 4]]}),
    "GPTJForCausalLM": ("transformer.h.1.attn.masked_bias", OWN | {"rotary_dim": 8}),
    "CodeGenForCausalLM": ("transformer.h.1.attn.causal_mask", OWN | {"rotary_dim": 8}),
    "GPTNeoXForCausalLM": ("gpt_neox.layers.1.attention.masked_bias", {"num_key_value_heads": ...}),
}


@pytest.mark.parametrize("architecture", MASKS)
def test_saved_masks_are_left_aside_and_nothing_else(architecture: str, tmp_path: Path) -> None:
    name, keys = MASKS[architecture]
    reference(architecture, **keys).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {name: torch.ones(1)})
    load_model(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"extra.weight": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"extra\.weight"):
        load_model(tmp_path)


REFUSED: list[tuple[str, dict[str, Any], str, object]] = [
    ("GPT2LMHeadModel", OWN, "add_cross_attention", True),
    ("GPT2LMHeadModel", OWN, "activation_function", "mish"),
    ("GPT2LMHeadModel", OWN, "n_inner", 2**40),
    ("GPTBigCodeForCausalLM", OWN, "multi_query", 3),
    ("GPTJForCausalLM", OWN | {"rotary_dim": 8}, "rotary", False),
    ("GPTJForCausalLM", OWN | {"rotary_dim": 8}, "scale_attn_weights", False),
    ("CodeGenForCausalLM", OWN | {"rotary_dim": 8}, "n_head", 2),
    ("GPTNeoForCausalLM", NEO | {"attention_types": [[["global"], 4]]}, "attention_types", [[["global"], 3]]),
    ("GPTNeoForCausalLM", NEO | {"attention_types": [[["global"], 4]]}, "attention_types", 7),
    ("GPTNeoForCausalLM", NEO | {"attention_types": [[["global"], 4]]}, "attention_types", [[["global"], 10**15]]),
    ("GPTNeoForCausalLM", NEO | {"attention_types": [[["global"], 4]]}, "attention_layers", ["local"] * 4),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_what_is_not_computed_is_refused(case: tuple[str, dict[str, Any], str, object], tmp_path: Path) -> None:
    architecture, keys, key, value = case
    reference(architecture, **keys).config.save_pretrained(tmp_path)
    rewrite(tmp_path, architectures=[architecture])
    refused(tmp_path, key, value)
