"""Gemma 1 to 3 against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_checks import check_family
from family_cover import covered

HALF = {"head_dim": 32, "query_pre_attn_scalar": 20}
KINDS = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("GemmaForCausalLM", {"head_dim": 32}),
    "gemma, untied with biases": (
        "GemmaForCausalLM",
        {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "gemma, gelu is gelu-tanh": ("GemmaForCausalLM", {"head_dim": 16, "hidden_act": "gelu", "initializer_range": 0.5}),
    "gemma2": ("Gemma2ForCausalLM", HALF | {"sliding_window": 9}),
    "gemma2, low caps": (
        "Gemma2ForCausalLM",
        HALF
        | {"sliding_window": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5, "attention_bias": True},
    ),
    "gemma2, no caps": ("Gemma2ForCausalLM", HALF | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, layer types": (
        "Gemma2ForCausalLM",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma3": ("Gemma3ForCausalLM", HALF | {"sliding_window": 9, "num_hidden_layers": 7}),
    "gemma3, rope by kind": (
        "Gemma3ForCausalLM",
        HALF | {"sliding_window": 9, "sliding_window_pattern": 2, "rope_parameters": KINDS},
    ),
    "gemma3, capped, biased, untied": (
        "Gemma3ForCausalLM",
        HALF
        | {"final_logit_softcapping": 2.0, "attention_bias": True, "tie_word_embeddings": False, "rms_norm_eps": 0.01},
    ),
    "vault gemma": ("VaultGemmaForCausalLM", HALF | {"sliding_window": 9}),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, tolerance=5e-5, **keys)  # 1 + weight makes rounding larger
