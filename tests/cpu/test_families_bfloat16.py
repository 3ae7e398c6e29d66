"""In bfloat16 a family stays near its float32 logits: what has to be computed in float32 is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import logits_of, prompt, reference
from rig import Rig, Row

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("GemmaForCausalLM", {"head_dim": 32}),
    "gemma3": ("Gemma3ForCausalLM", {"head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 9}),
    "cohere": ("CohereForCausalLM", {"use_qk_norm": True}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "granite": (
        "GraniteForCausalLM",
        {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.3},
    ),
    "ernie": ("Ernie4_5ForCausalLM", {"head_dim": 16}),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
    "glm 4.5": (
        "Glm4MoeForCausalLM",
        {"n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "num_mtp_layers": 0},
    ),
    "apertus": ("ApertusForCausalLM", {}),
}


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_is_as_near_as_transformers_is(case: str, tmp_path: Path) -> None:
    """Not farther from the float32 logits than 1.5 times what transformers' own bfloat16 is."""
    architecture, keys = CASES[case]
    model = reference(architecture, initializer_range=0.05, **keys)
    model.save_pretrained(tmp_path)
    tokens = prompt(320)
    expected = logits_of(model, tokens)
    theirs = off(logits_of(model.to(torch.bfloat16), tokens), expected)
    ours = off(Rig(tmp_path, torch.bfloat16).step([(Row(tokens), len(tokens))], every_row=True), expected)
    assert ours < 1.5 * theirs < 0.2, (ours, theirs)
