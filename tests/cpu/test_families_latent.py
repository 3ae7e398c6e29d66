"""Families with latent attention, against transformers: cold, in chunks, forked, decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_checks import check_family

SMALL: dict[str, Any] = {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
EXPERTS: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 2, "routed_scaling_factor": 1.7}
V2 = SMALL | EXPERTS | {"first_k_dense_replace": 1}
V3 = V2 | {"n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 1}
YARN: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.0, "beta_slow": 1.0}
MINICPM = SMALL | {"v_head_dim": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v2": ("DeepseekV2ForCausalLM", V2 | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek v2 lite": ("DeepseekV2ForCausalLM", V2 | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek v2, biases": ("DeepseekV2ForCausalLM", V2 | {"attention_bias": True, "mlp_bias": True, "topk_method": "greedy"}),
    "deepseek v3": ("DeepseekV3ForCausalLM", V3 | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek v3, plain": ("DeepseekV3ForCausalLM", V3 | {"q_lora_rank": None, "attention_bias": True, "norm_topk_prob": False, "rope_interleave": False}),
    "deepseek v3, wide": ("DeepseekV3ForCausalLM", V3 | {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 6}),
    "kimi k2": ("DeepseekV3ForCausalLM", V3 | {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "rope_parameters": YARN | {"rope_theta": 5e4, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "glm 4.7 flash": ("Glm4MoeLiteForCausalLM", SMALL | EXPERTS | {"rms_norm_eps": 1e-5}),
    "glm 4.7 flash, by layer": ("Glm4MoeLiteForCausalLM", SMALL | EXPERTS | {"mlp_layer_types": ["sparse", "dense"] * 2, "attention_bias": True}),
    "mistral 4": ("Mistral4ForCausalLM", V2 | {"n_group": 4, "topk_group": 2, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}}),
    "minicpm 3": ("MiniCPM3ForCausalLM", MINICPM | {"scale_emb": 3.0, "scale_depth": 1.1, "dim_model_base": 16}),
    "minicpm 3, plain": ("MiniCPM3ForCausalLM", MINICPM | {"q_lora_rank": None, "scale_depth": None, "dim_model_base": None, "tie_word_embeddings": False, "attention_bias": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_families_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)
