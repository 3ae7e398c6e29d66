"""Llama's relatives against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_checks import check_family
from family_cover import covered
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.layers.rotary_embedding import frequencies

LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + i / 8 for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 9, "head_dim": 32}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32, "attention_bias": True}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": 9}),
    "phi3, three quarters turn": ("Phi3ForCausalLM", {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}),
    "phi3, long": (
        "Phi3ForCausalLM",
        {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 16, "rope_parameters": LONG},
    ),
    "phi3, short": (
        "Phi3ForCausalLM",
        {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 256, "rope_parameters": LONG},
    ),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


def test_frequencies_of_longrope_have_the_bits_of_transformers() -> None:
    """A last bit of the fastest is a thousandth of a turn, a hundred thousand tokens on."""
    factors = [1.08 + 0.9 * i for i in range(48)]
    parameters = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": factors,
        "long_factor": factors,
        "factor": 32.0,
    }
    config = transformers.Phi3Config(
        hidden_size=384,
        num_attention_heads=4,
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        rope_parameters=parameters | {"original_max_position_embeddings": 4096},
    )
    expected, _ = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=131_072)
    assert torch.equal(frequencies(RopeParameters(1e4, 96, 96, "longrope", factors=tuple(factors))), expected)
