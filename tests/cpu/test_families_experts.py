"""Families with mixtures of experts against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_checks import SIZES, check_family
from family_cover import covered

from sgl.runtime.errors import ConfigError
from sgl.runtime.models import read_model

EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1.5e5,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
GLM: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "num_mtp_layers": 0,
}
ERNIE: dict[str, Any] = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24}
OLMOE = {"num_experts": 6, "num_experts_per_tok": 2}
LONG = {  # transformers takes the short factors for PhiMoE whatever the length is
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [2.0 + i for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "short_mscale": 1.2,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 moe": ("Qwen3MoeForCausalLM", EXPERTS | {"norm_topk_prob": True, "head_dim": 32}),
    "qwen3 moe, dense layers": (
        "Qwen3MoeForCausalLM",
        EXPERTS
        | {
            "mlp_only_layers": [0],
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "num_experts_per_tok": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
        },
    ),
    "qwen2 moe": ("Qwen2MoeForCausalLM", EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen2 moe, windows": (
        "Qwen2MoeForCausalLM",
        EXPERTS
        | {
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 9,
            "mlp_only_layers": [2],
        },
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, window": (
        "MixtralForCausalLM",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 1,
            "sliding_window": 9,
            "head_dim": 32,
            "tie_word_embeddings": True,
        },
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        LOCAL | {"head_dim": 16, "sliding_window": 9, "rope_parameters": YARN, "swiglu_limit": 1.5},
    ),
    "gpt-oss, no biases": (
        "GptOssForCausalLM",
        LOCAL
        | {
            "head_dim": 32,
            "sliding_window": 9,
            "attention_bias": False,
            "num_experts_per_tok": 4,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "glm 4.5": ("Glm4MoeForCausalLM", GLM | {"use_qk_norm": True, "attention_bias": True, "head_dim": 32}),
    "glm 4.5, groups": (
        "Glm4MoeForCausalLM",
        GLM
        | {
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
            "partial_rotary_factor": 0.25,
        },
    ),
    "glm 4.5, not normalised": (
        "Glm4MoeForCausalLM",
        GLM | {"norm_topk_prob": False, "first_k_dense_replace": 0, "tie_word_embeddings": True},
    ),
    "minimax m2": ("MiniMaxM2ForCausalLM", LOCAL | {"head_dim": 32, "rotary_dim": 16}),
    "minimax m2, turned whole": ("MiniMaxM2ForCausalLM", LOCAL | {"head_dim": 16, "num_experts_per_tok": 3}),
    "olmoe": ("OlmoeForCausalLM", OLMOE | {"norm_topk_prob": True}),
    "olmoe, biases": (
        "OlmoeForCausalLM",
        OLMOE | {"attention_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "phimoe": ("PhimoeForCausalLM", LOCAL | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.3}),
    "phimoe, long": ("PhimoeForCausalLM", LOCAL | {"rope_parameters": LONG, "router_jitter_noise": 0.05}),
    "granite moe": (
        "GraniteMoeForCausalLM",
        LOCAL
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.3, "logits_scaling": 5.0},
    ),
    "granite moe, shared": (
        "GraniteMoeSharedForCausalLM",
        LOCAL | {"shared_intermediate_size": 40, "attention_bias": True, "attention_multiplier": 0.3},
    ),
    "ernie moe": ("Ernie4_5_MoeForCausalLM", ERNIE),
    "ernie moe, biases": (
        "Ernie4_5_MoeForCausalLM",
        ERNIE
        | {
            "use_bias": True,
            "moe_layer_start_index": 0,
            "moe_layer_end_index": 2,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 1,
            "moe_norm_min": 0.5,
        },
    ),
    "ernie moe, none shared": (
        "Ernie4_5_MoeForCausalLM",
        ERNIE | {"moe_num_shared_experts": 0, "tie_word_embeddings": False},
    ),
    "hunyuan moe": ("HunYuanMoEV1ForCausalLM", {"num_experts": 6, "moe_topk": 2, "head_dim": 32}),
    "hunyuan moe, by layer": (
        "HunYuanMoEV1ForCausalLM",
        {"num_experts": 5, "moe_topk": [3] * 4, "head_dim": 16, "attention_bias": True},
    ),
    "hunyuan 3": ("HYV3ForCausalLM", EXPERTS | {"head_dim": 32, "router_scaling_factor": 2.5}),
    "hunyuan 3, by layer": (
        "HYV3ForCausalLM",
        EXPERTS
        | {
            "head_dim": 16,
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "num_shared_experts": 2,
            "attention_bias": True,
            "enable_moe_fp32_combine": False,
        },
    ),
    "llama 4": (
        "Llama4ForCausalLM",
        LOCAL
        | {
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "intermediate_size_mlp": 80,
            "attention_chunk_size": 11,
            "floor_scale": 7,
            "attn_scale": 0.4,
        },
    ),
    "llama 4, every other": (
        "Llama4ForCausalLM",
        LOCAL
        | {
            "head_dim": 32,
            "intermediate_size_mlp": 80,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": False,
            "no_rope_layers": [1, 0, 1, 0],
            "attention_chunk_size": 11,
        },
    ),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


@pytest.mark.parametrize("count", [1, 3])
def test_phimoe_takes_two_experts(count: int) -> None:
    """transformers' router does so whatever config.json says."""
    with pytest.raises(ConfigError, match=f"num_experts_per_tok={count} is not supported; only 2 is"):
        read_model({"architectures": ["PhimoeForCausalLM"]} | SIZES | LOCAL | {"num_experts_per_tok": count})
