"""Families whose layers carry states along, against transformers: cold, in chunks, forked, decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import write_tokenizer
from family_checks import SIZES, check_checkpoint, check_family, prompt, randomise, reference
from family_cover import covered
from rig import Rig, Row

from sgl.runtime.calibration.quantize_checkpoint import quantize
from sgl.runtime.errors import ConfigError
from sgl.runtime.models import read_model

BARE: dict[str, Any] = {
    "intermediate_size": ...,
    "num_attention_heads": ...,
    "num_key_value_heads": ...,
    "max_position_embeddings": ...,
    "state_size": 8,
}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "head_dim": 32,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 20,
}
NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": ...,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
    "head_dim": 16,
}
GRANITE: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mamba_n_heads": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 40,
}
FALCON: dict[str, Any] = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
}
KIMI: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "linear_head_dim": 12,
    "linear_num_heads": 3,
    "linear_conv_kernel_dim": 3,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 16,
    "num_shared_experts": 2,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 next": ("Qwen3NextForCausalLM", DELTA | EXPERTS),
    "qwen3 next, dense layers": (
        "Qwen3NextForCausalLM",
        DELTA
        | EXPERTS
        | {
            "mlp_only_layers": [0],
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "linear_num_value_heads": 2,
        },
    ),
    "qwen 3.5": ("Qwen3_5ForCausalLM", DELTA),
    "qwen 3.5, by layer": (
        "Qwen3_5ForCausalLM",
        DELTA | {"layer_types": ["full_attention", "linear_attention"] * 2, "tie_word_embeddings": True},
    ),
    "qwen 3.5 moe": ("Qwen3_5MoeForCausalLM", DELTA | EXPERTS | {"intermediate_size": ...}),
    "mamba": ("MambaForCausalLM", BARE),
    "mamba, biases": (
        "MambaForCausalLM",
        BARE | {"use_bias": True, "use_conv_bias": False, "time_step_rank": 7, "expand": 3, "conv_kernel": 3},
    ),
    "falcon mamba": ("FalconMambaForCausalLM", BARE | {"mixer_rms_eps": 0.1}),
    "mamba 2": ("Mamba2ForCausalLM", BARE | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16}),
    "mamba 2, limits": (
        "Mamba2ForCausalLM",
        BARE
        | {
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 4,
            "chunk_size": 16,
            "time_step_limit": [0.3, 0.9],
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "jamba": (
        "JambaForCausalLM",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 3, "mamba_d_state": 8},
    ),
    "jamba, dense": (
        "JambaForCausalLM",
        {
            "attn_layer_period": 3,
            "attn_layer_offset": 2,
            "num_experts": 1,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "mamba_dt_rank": 5,
            "tie_word_embeddings": True,
        },
    ),
    "nemotron h": (
        "NemotronHForCausalLM",
        NEMOTRON | {"layer_types": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]},
    ),
    "nemotron h, biases": (
        "NemotronHForCausalLM",
        NEMOTRON
        | {
            "layer_types": ["mlp", "full_attention", "linear_attention"],
            "use_bias": True,
            "use_conv_bias": False,
            "mlp_bias": True,
            "time_step_min": 0.5,
            "n_groups": 1,
        },
    ),
    "nemotron h, experts": (
        "NemotronHForCausalLM",
        NEMOTRON
        | {
            "layer_types": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 6,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "routed_scaling_factor": 2.5,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "nemotron h, latent experts": (
        "NemotronHForCausalLM",
        NEMOTRON
        | {
            "layer_types": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 6,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "moe_latent_size": 20,
            "mlp_bias": True,
        },
    ),
    "granite 4": (
        "GraniteMoeHybridForCausalLM",
        GRANITE
        | {
            "num_local_experts": 4,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.4,
            "logits_scaling": 4.0,
        },
    ),
    "granite 4, dense": (
        "GraniteMoeHybridForCausalLM",
        GRANITE
        | {
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "mamba_n_groups": 2,
            "attention_bias": True,
        },
    ),
    "olmo hybrid": (
        "OlmoHybridForCausalLM",
        {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "olmo hybrid, no positions": (
        "OlmoHybridForCausalLM",
        {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 8,
            "linear_allow_neg_eigval": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
    ),
    "kimi linear": ("KimiLinearForCausalLM", KIMI | {"layer_types": ["linear_attention", "full_attention"] * 2}),
    "kimi linear, as it comes": (
        "KimiLinearForCausalLM",
        KIMI
        | {"num_hidden_layers": 5, "q_lora_rank": 24, "num_expert_group": 2, "topk_group": 1, "moe_renormalize": False},
    ),
    "falcon h1": ("FalconH1ForCausalLM", FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "falcon h1, multipliers": (
        "FalconH1ForCausalLM",
        FALCON
        | {
            "mamba_rms_norm": True,
            "lm_head_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "mlp_multipliers": [0.7, 0.4],
            "key_multiplier": 0.5,
            "attention_out_multiplier": 0.8,
            "attention_in_multiplier": 1.2,
            "ssm_multipliers": [0.5, 1.5, 0.7, 1.3, 0.9],
            "ssm_in_multiplier": 1.4,
            "ssm_out_multiplier": 0.6,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
        },
    ),
    "falcon h1, no norm": ("FalconH1ForCausalLM", FALCON | {"mamba_d_ssm": None, "time_step_limit": [0.2, 0.8]}),
}
TOLERANCE = 3e-4  # of the largest logit: from the same in float64 transformers is up to 1.6e-4 away, we 4e-5


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, 0, TOLERANCE, **keys)


@pytest.mark.parametrize("mixture", [False, True])
def test_the_text_model_of_a_wrapper_is_that_of_transformers(mixture: bool, tmp_path: Path) -> None:
    name, more = ("Qwen3_5MoeForConditionalGeneration", EXPERTS) if mixture else ("Qwen3_5ForConditionalGeneration", {})
    eyes = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
    }
    turning = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
    kind: Any = getattr(transformers, name)
    text = SIZES | DELTA | more | {"rope_parameters": turning}
    config = kind.config_class(text_config=text, vision_config=eyes)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = kind(config).eval()
    randomise(model, 0)
    model.save_pretrained(tmp_path)
    assert "its text model only" in check_checkpoint(model, tmp_path, TOLERANCE).model.config.notes[0]


def values(architecture: str, **keys: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"architectures": [architecture]} | SIZES | keys
    return {key: value for key, value in kept.items() if value is not ...}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Qwen3_5ForCausalLM", {"layer_types": ["mlp"] * 4}, "layer_types=.* must name linear_attention or full_attention"),
    ("Qwen3_5ForCausalLM", {"layer_types": ["mamba"]}, "layer_types=.* must name 4 layers, not 1"),
    ("Qwen3_5ForCausalLM", {"attn_output_gate": False}, "attn_output_gate=False is not supported"),
    (
        "Qwen3_5ForCausalLM",
        {"linear_num_value_heads": 3, "linear_num_key_heads": 2},
        "linear_num_value_heads=3 is not a multiple",
    ),
    ("Qwen3_5ForCausalLM", {"linear_conv_kernel_dim": 65}, "linear_conv_kernel_dim.* at most 64"),
    ("MambaForCausalLM", {"intermediate_size": 96}, "intermediate_size=96 is not supported; only 128 is"),
    ("MambaForCausalLM", {"intermediate_size": ..., "expand": 1e9}, "expand=.* gives"),
    ("Mamba2ForCausalLM", {"intermediate_size": ..., "num_heads": 7}, "num_heads=7 .* must give 128 numbers"),
    (
        "Mamba2ForCausalLM",
        {"intermediate_size": ..., "num_heads": 4, "head_dim": 32, "n_groups": 3},
        "4 heads of Mamba 2 cannot share 3 groups",
    ),
    (
        "Mamba2ForCausalLM",
        {"intermediate_size": ..., "num_heads": 4, "head_dim": 32, "n_groups": 2, "time_step_limit": [1, 0]},
        "time_step_limit=.* least and the largest",
    ),
    ("JambaForCausalLM", {"attn_layer_offset": 9}, "attn_layer_offset=9 must be at least 0 and below"),
    (
        "NemotronHForCausalLM",
        {"hybrid_override_pattern": "M-X*"},
        "hybrid_override_pattern='M-X.' may have the letters",
    ),
    ("NemotronHForCausalLM", {"hybrid_override_pattern": "M-*"}, "num_hidden_layers=4 is not supported; only 3 is"),
    (
        "NemotronHForCausalLM",
        {"hybrid_override_pattern": "ME*E", "n_shared_experts": 2},
        "n_shared_experts=2 is not supported",
    ),
    (
        "GraniteMoeHybridForCausalLM",
        {"position_embedding_type": "alibi"},
        "position_embedding_type='alibi' is not supported",
    ),
    ("FalconH1ForCausalLM", {"ssm_multipliers": [1.0]}, "ssm_multipliers=.* must hold 5 numbers"),
]


@pytest.mark.parametrize(("architecture", "keys", "message"), REFUSED)
def test_what_is_not_computed_is_refused(architecture: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_model(values(architecture, **keys))


def test_nemotron_h_says_its_layers_in_letters_or_in_words() -> None:
    names = {"M": "mamba", "-": "mlp", "*": "attention"}
    letters = read_model(values("NemotronHForCausalLM", hybrid_override_pattern="M-*-"))
    assert letters == read_model(values("NemotronHForCausalLM", layers_block_type=[names[letter] for letter in "M-*-"]))


def test_kimi_linear_as_it_was_published() -> None:
    keys = {key: value for key, value in KIMI.items() if not key.startswith("linear_")}
    said = {
        "head_dim": 12,
        "num_heads": 3,
        "short_conv_kernel_size": 3,
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
    }
    published = keys | {
        "linear_attn_config": said,
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "rope_theta": 1e4,
        "moe_router_activation_func": "sigmoid",
        "use_grouped_topk": True,
        "model_max_length": 256,
        "max_position_embeddings": ...,
    }
    kinds = {
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * 3,
    }
    assert read_model(values("KimiLinearForCausalLM", **published)) == read_model(
        values("KimiLinearForCausalLM", **KIMI, **kinds)
    )
    for wrong, message in (
        ({"full_attn_layers": [3]}, "must have each of 4 layers once"),
        ({"new": 3}, "linear_attn_config: key 'new' .3. is not understood"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_model(values("KimiLinearForCausalLM", **published | {"linear_attn_config": said | wrong}))


@pytest.mark.parametrize("case", ["qwen3 next, dense layers", "mamba 2", "falcon h1", "kimi linear"])
def test_what_the_quantizing_tool_writes_is_read_back(case: str, tmp_path: Path) -> None:
    """Rows in the files' order, which may be that of key heads; what states decay by as it was."""
    architecture, keys = CASES[case]
    reference(architecture, **keys).save_pretrained(tmp_path / "whole")
    write_tokenizer(tmp_path / "whole")
    quantize(tmp_path / "whole", tmp_path / "eight", "int8")
    found, expected = (
        Rig(tmp_path / name).step([(Row(prompt(320)), 60)], every_row=True) for name in ("eight", "whole")
    )
    assert float((found - expected).abs().mean()) < 0.15 * float(expected.abs().mean())
