"""Families with mixtures of experts against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_checks import check_family

EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 moe": ("Qwen3MoeForCausalLM", EXPERTS | {"norm_topk_prob": True, "head_dim": 32}),
    "qwen3 moe, dense layers": (
        "Qwen3MoeForCausalLM",
        EXPERTS | {"mlp_only_layers": [0], "decoder_sparse_step": 2, "attention_bias": True, "num_experts_per_tok": 3, "use_sliding_window": True, "sliding_window": 9},
    ),
    "qwen2 moe": ("Qwen2MoeForCausalLM", EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen2 moe, windows": (
        "Qwen2MoeForCausalLM",
        EXPERTS | {"shared_expert_intermediate_size": 40, "norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": True, "sliding_window": 9, "mlp_only_layers": [2]},
    ),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, window": ("MixtralForCausalLM", {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 9, "head_dim": 32, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)
