"""Families since Llama against transformers, but for Gemma."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_checks import check_family

YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo": ("OlmoForCausalLM", {}),
    "olmo, clipped": ("OlmoForCausalLM", {"clip_qkv": 0.5, "attention_bias": True, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo2, biases": ("Olmo2ForCausalLM", {"attention_bias": True, "num_key_value_heads": 4, "rms_norm_eps": 0.1}),
    "olmo3": ("Olmo3ForCausalLM", {"sliding_window": 9}),
    "olmo3, yarn": (
        "Olmo3ForCausalLM",
        {"sliding_window": 9, "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 900.0}}},
    ),
    "olmo3, layer types": (
        "Olmo3ForCausalLM",
        {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"] * 2, "attention_bias": True},
    ),
    "glm": ("GlmForCausalLM", {"head_dim": 32}),
    "glm, no biases": ("GlmForCausalLM", {"head_dim": 32, "attention_bias": False, "partial_rotary_factor": 0.25}),
    "glm, turned whole, tied": (
        "GlmForCausalLM",
        {"head_dim": 16, "partial_rotary_factor": 1.0, "tie_word_embeddings": True},
    ),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 32}),
    "glm4, other numbers": ("Glm4ForCausalLM", {"head_dim": 16, "attention_bias": False, "rms_norm_eps": 0.1}),
    "cohere": ("CohereForCausalLM", {}),
    "cohere, norms of heads": (
        "CohereForCausalLM",
        {"use_qk_norm": True, "logit_scale": 0.7, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "cohere2": ("Cohere2ForCausalLM", {"sliding_window": 9}),
    "cohere2, layer types": (
        "Cohere2ForCausalLM",
        {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"] * 2, "attention_bias": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)
