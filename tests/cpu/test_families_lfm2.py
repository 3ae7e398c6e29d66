"""LFM2 against transformers: layers that keep a state beside layers that keep keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import check_family, prompt
from family_cover import covered
from rig import Rig, Row

from sgl.runtime.errors import ConfigError
from sgl.runtime.models.families import read_model

HYBRID = ["conv", "full_attention", "conv", "conv"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2ForCausalLM", {"layer_types": HYBRID, "block_multiple_of": 32}),
    "lfm2, wide, biases, untied": (
        "Lfm2ForCausalLM",
        {
            "layer_types": HYBRID,
            "conv_L_cache": 5,
            "conv_bias": True,
            "tie_word_embeddings": False,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 0.1,
        },
    ),
    "lfm2, indices": (
        "Lfm2ForCausalLM",
        {"full_attn_idxs": [0, 2], "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 16},
    ),
    "lfm2, no convolutions": ("Lfm2ForCausalLM", {}),
    "lfm2, no attention": ("Lfm2ForCausalLM", {"layer_types": ["conv"] * 4, "block_multiple_of": 32}),
    "lfm2 moe": (
        "Lfm2MoeForCausalLM",
        {
            "layer_types": HYBRID,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "num_dense_layers": 1,
        },
    ),
    "lfm2 moe, other router": (
        "Lfm2MoeForCausalLM",
        {
            "layer_types": HYBRID,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "num_dense_layers": 2,
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
        },
    ),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


def test_a_state_is_that_of_its_own_sequence(tmp_path: Path) -> None:
    """Steps in every mixture of prompts and single tokens give what each sequence gives alone."""
    check_family("Lfm2ForCausalLM", tmp_path, **CASES["lfm2"][1])
    rig, alone = Rig(tmp_path), Rig(tmp_path, seed=1)
    rows = [Row(prompt(320, 30, seed)) for seed in range(5)]
    expected = [alone.step([(Row(row.tokens), 30)], every_row=True) for row in rows]
    generator = torch.Generator().manual_seed(0)
    while any(row.pending for row in rows):
        counts = [min(row.pending, int(torch.randint(0, 7, (), generator=generator))) for row in rows]
        work = [(row, count) for row, count in zip(rows, counts, strict=True) if count]
        if not work:
            continue
        found = rig.step(work)
        for (row, _), logits in zip(work, found, strict=True):
            torch.testing.assert_close(logits, expected[rows.index(row)][len(row.slots) - 1], rtol=1e-4, atol=1e-4)


def test_the_published_keys_are_understood() -> None:
    values = {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": True,
        "block_dim": 2048,
        "block_ff_dim": 12288,
        "block_ffn_dim_multiplier": 1.0,
        "block_mlp_init_scale": 1.0,
        "block_multiple_of": 256,
        "block_norm_eps": 1e-05,
        "block_out_init_scale": 1.0,
        "block_use_swiglu": True,
        "block_use_xavier_init": True,
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 2048,
        "conv_dim_out": 2048,
        "conv_use_xavier_init": True,
        "eos_token_id": 7,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "max_position_embeddings": 128000,
        "model_type": "lfm2",
        "norm_eps": 1e-05,
        "num_attention_heads": 32,
        "num_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pad_token_id": 0,
        "rope_theta": 1000000.0,
        "theta": 1000000.0,
        "tie_embedding": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_pos_enc": True,
        "vocab_size": 65536,
    }
    model = read_model(json.loads(json.dumps(values)))
    assert [index for index, layer in enumerate(model.attention.layers) if layer is not None] == [2, 5, 8, 10, 12, 14]
    assert model.tied and model.layers[0].ffn.inner == 8192 and model.states[0][0].shape == (2, 2048)
    assert model.attention.bytes_per_slot(torch.bfloat16) == 6 * 2 * 8 * 64 * 2


@pytest.mark.parametrize(
    "keys", [{"layer_types": ["conv", "mamba"]}, {"full_attn_idxs": [7]}, {"layer_types": ["conv"]}]
)
def test_layers_that_cannot_be_are_named(keys: dict[str, Any]) -> None:
    values = {
        "architectures": ["Lfm2ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 320,
        "max_position_embeddings": 256,
    }
    with pytest.raises(ConfigError, match=next(iter(keys))):
        read_model(values | keys)
