"""MiMo 7B and V2-Flash beside transformers, and as their checkpoints are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import check_checkpoint, check_family, close, logits_of, prompt, reference
from rig import Rig, Row
from safetensors.torch import load_file, save_file

from sgl.runtime.errors import ConfigError
from sgl.runtime.loading import load_config

ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.334},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.334},
}
FLASH: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "v_head_dim": 12,
    "sliding_window": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "rope_parameters": ROPE,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mimo v2": ("MiMoV2FlashForCausalLM", FLASH),
    "mimo v2, groups": (
        "MiMoV2FlashForCausalLM",
        FLASH
        | {
            "layer_types": None,
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "attention_value_scale": None,
            "attention_bias": True,
            "mlp_layer_types": ["sparse", "dense"] * 2,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


def test_v2_as_it_is_published(tmp_path: Path) -> None:
    """By lists of 0 and 1, keys of windows beside the others, a window without the token
    itself, and layers that predict further tokens.
    """
    model = reference("MiMoV2FlashForCausalLM", **FLASH)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps"):
        del config[key]
    config |= {
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 24,
        "swa_v_head_dim": 12,
        "rope_theta": 5e6,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.334,
        "sliding_window": 5,
        "sliding_window_size": 5,
        "layernorm_epsilon": model.config.rms_norm_eps,
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "hybrid_block_size": None,
        "attention_chunk_size": 128,
        "n_shared_experts": None,
        "routed_scaling_factor": None,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    assert any(name.endswith("attention_sink_bias") for name in tensors)
    save_file(
        tensors | {"model.mtp.layers.0.eh_proj.weight": torch.ones(4, 4)},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    check_checkpoint(model, tmp_path)


def test_7b_is_qwen_2_with_a_layer_that_is_left_aside(tmp_path: Path) -> None:
    model = reference("Qwen2ForCausalLM", head_dim=24, rms_norm_eps=1e-5)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_nextn_predict_layers": 1,
        "attention_bias": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    more = {
        "model.mtp_layers.0.input_proj.weight": torch.ones(4, 8),
        "model.mtp_layers.0.self_attn.q_proj.bias": torch.ones(4),
    }
    save_file(tensors | more, tmp_path / "model.safetensors", {"format": "pt"})
    tokens = prompt(model.config.vocab_size)
    close(
        Rig(tmp_path).step([(Row(tokens), len(tokens))], every_row=True), logits_of(model, tokens), 1e-5, "all at once"
    )


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias=True is not supported"),
        ({"swa_head_dim": 32}, "swa_head_dim=32 is not supported"),
        (
            {"layer_types": None, "hybrid_layer_pattern": [0, 1, 2, 0]},
            r"layer_types=\[.*2.*\] must name full_attention or sliding_attention 4 times",
        ),
        ({"n_shared_experts": 1}, "n_shared_experts=1 is not supported"),
        ({"swa_num_key_value_heads": 3}, "4 heads cannot share 3 heads of keys evenly"),
    ],
)
def test_what_is_not_computed_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = reference("MiMoV2FlashForCausalLM", **FLASH)
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["MiMoV2FlashForCausalLM"]} | keys
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path)
