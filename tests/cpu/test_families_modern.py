"""Families since Llama against transformers, but for Gemma."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_checks import check_family
from family_cover import covered

YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo": ("OlmoForCausalLM", {}),
    "olmo, clipped": ("OlmoForCausalLM", {"clip_qkv": 0.5, "attention_bias": True, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo2, biases": ("Olmo2ForCausalLM", {"attention_bias": True, "num_key_value_heads": 4, "rms_norm_eps": 0.1}),
    "olmo3": ("Olmo3ForCausalLM", {"sliding_window": 9}),
    "olmo3, yarn": (
        "Olmo3ForCausalLM",
        {
            "sliding_window": 9,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
            },
        },
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
    "ministral": ("MinistralForCausalLM", {"sliding_window": 9, "head_dim": 32}),
    "ministral, layer types": (
        "MinistralForCausalLM",
        {
            "sliding_window": 9,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "tie_word_embeddings": True,
        },
    ),
    "ministral3": ("Ministral3ForCausalLM", {"head_dim": 32}),
    "ministral3, warm": (
        "Ministral3ForCausalLM",
        {
            "head_dim": 16,
            "rope_parameters": YARN | {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.4},
        },
    ),
    "ministral3, window": ("Ministral3ForCausalLM", {"head_dim": 16, "sliding_window": 9, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "smollm3, windows": (
        "SmolLM3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [1, 0, 0, 1]},
    ),
    "smollm3, biases, untied": (
        "SmolLM3ForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False, "no_rope_layer_interval": 2},
    ),
    "exaone4": ("Exaone4ForCausalLM", {"sliding_window": 9}),
    "exaone4, no window": ("Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "exaone4, layer types": (
        "Exaone4ForCausalLM",
        {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"] * 2, "tie_word_embeddings": True},
    ),
    "granite": (
        "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.3, "logits_scaling": 5.0},
    ),
    "granite, biases, tied": (
        "GraniteForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "granite swa": (
        "GraniteSWAForCausalLM",
        {"sliding_window": 9, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    ),
    "granite swa, bases": (
        "GraniteSWAForCausalLM",
        {
            "sliding_window": 9,
            "layer_rope_theta": [0, 500.0, 0, 1e4],
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "hyperclovax": (
        "HyperCLOVAXForCausalLM",
        {"logits_scaling": 0.3, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    ),
    "hyperclovax, pre": (
        "HyperCLOVAXForCausalLM",
        {"use_post_norm": False, "attention_multiplier": 0.1, "head_dim": 32},
    ),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", {"head_dim": 32}),
    "hunyuan, alpha": (
        "HunYuanDenseV1ForCausalLM",
        {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e3},
            "attention_bias": True,
        },
    ),
    "ernie": ("Ernie4_5ForCausalLM", {"head_dim": 32}),
    "ernie, biases, untied": ("Ernie4_5ForCausalLM", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False}),
    "seed oss": ("SeedOssForCausalLM", {"head_dim": 32}),
    "seed oss, other biases": (
        "SeedOssForCausalLM",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    ),
    "helium": ("HeliumForCausalLM", {"head_dim": 16}),
    "helium, biases": (
        "HeliumForCausalLM",
        {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "cwm": ("CwmForCausalLM", {"sliding_window": 9, "head_dim": 16}),
    "cwm, layer types": (
        "CwmForCausalLM",
        {"sliding_window": 9, "head_dim": 32, "layer_types": ["sliding_attention"] * 4, "mlp_bias": True},
    ),
    "nemotron": ("NemotronForCausalLM", {"head_dim": 32}),
    "nemotron, biases": (
        "NemotronForCausalLM",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "partial_rotary_factor": 0.25,
            "norm_eps": 0.1,
            "hidden_act": "gelu",
        },
    ),
    "jais2": ("Jais2ForCausalLM", {}),
    "jais2, no biases": ("Jais2ForCausalLM", {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}),
    "arcee": ("ArceeForCausalLM", {}),
    "arcee, biases": ("ArceeForCausalLM", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    "apertus": ("ApertusForCausalLM", {}),
    "apertus, relu2": (
        "ApertusForCausalLM",
        {"attention_bias": True, "hidden_act": "relu2", "tie_word_embeddings": True},
    ),
    "stablelm": ("StableLmForCausalLM", {"hidden_size": 128}),
    "stablelm, parallel": (
        "StableLmForCausalLM",
        {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "starcoder2, window": (
        "Starcoder2ForCausalLM",
        {"sliding_window": 9, "use_bias": False, "tie_word_embeddings": False},
    ),
    "nanochat": ("NanoChatForCausalLM", {}),
    "nanochat, biases, no cap": (
        "NanoChatForCausalLM",
        {"attention_bias": True, "final_logit_softcapping": None, "tie_word_embeddings": True},
    ),
    "internlm3": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "head_dim": 32, "rms_norm_eps": 1e-5}),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)
