"""Random configurations of families: sizes, flags and parameters that transformers' configuration classes have."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import transformers

KINDS = ("full_attention", "sliding_attention")
BY_KIND = ("Gemma3", "Gemma4", "Olmo3")  # rotations of each kind of layers
PARTLY = ("GlmForCausalLM", "Glm4ForCausalLM", "NemotronForCausalLM", "StableLmForCausalLM", "Phi3ForCausalLM")
NOT_DRAWN = {
    "use_cache", "is_decoder", "return_dict", "output_hidden_states", "is_encoder_decoder", "enable_moe_block", "attn_logit_softcapping",
    "use_bidirectional_attention",
}  # fmt: skip
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 100.0},
    {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e3},
    {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0, "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 0.5},
    {"rope_type": "dynamic", "rope_theta": 5e3, "factor": 4.0},
]
VALUES: dict[str, tuple[Any, ...]] = {
    "sliding_window": (5, 9), "max_window_layers": (1, 2, 9), "clip_qkv": (None, 0.6), "query_pre_attn_scalar": (7, 30),
    "final_logit_softcapping": (None, 1.5, 20.0), "hidden_size_per_layer_input": (0, 8), "num_kv_shared_layers": (0, 1),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon"), (1e-6, 0.1)),
    **dict.fromkeys(("hidden_act", "hidden_activation"), ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "gelu_new")),
    **dict.fromkeys(("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier", "logit_scale"), (0.3, 2.0)),
}  # fmt: skip
LISTS: dict[str, tuple[Any, ...]] = {"layer_types": KINDS, "no_rope_layers": (0, 1), "layer_rope_theta": (0, 300.0, 1e4)}


def draw(architecture: str, seed: int) -> dict[str, Any]:
    """Keys of a configuration, all sizes among them."""
    random, fields = Random(f"{architecture} {seed}"), _fields(architecture)
    heads, layers, dim = random.choice([2, 4, 6]), random.choice([2, 3, 5]), random.choice([8, 16, 24])
    keys: dict[str, Any] = {
        "hidden_size": heads * random.choice([8, 16, dim]), "intermediate_size": random.choice([40, 72]), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": random.choice([1, 2, heads]), "max_position_embeddings": 128,
        "vocab_size_per_layer_input": 320, "head_dim": dim, "global_head_dim": 2 * dim,
    }  # fmt: skip
    keys = {key: value for key, value in keys.items() if key in fields or (key == "global_head_dim" and architecture.startswith("Gemma4"))}
    keys |= {key: not default for key, default in fields.items() if isinstance(default, bool) and random.random() < 0.4}
    keys |= {key: random.choice(values) for key, values in VALUES.items() if key in fields and random.random() < 0.6}
    keys |= {key: random.choices(values, k=layers) for key, values in LISTS.items() if key in fields and random.random() < 0.4}
    if "rope_parameters" in fields and random.random() < 0.6:
        keys["rope_parameters"] = _rope(architecture, random)
    if architecture in PARTLY:
        keys["partial_rotary_factor"] = random.choice([0.25, 0.5, 1.0])
    return keys


def _fields(architecture: str) -> dict[str, Any]:
    """Their defaults."""
    found = dataclasses.fields(getattr(transformers, architecture).config_class)
    return {field.name: field.default for field in found if field.name not in NOT_DRAWN}


def _rope(architecture: str, random: Random) -> dict[str, Any]:
    if architecture.startswith(BY_KIND):
        return {kind: dict(random.choice(ROPES)) for kind in KINDS}
    if architecture == "Ministral3ForCausalLM":
        return random.choice(ROPES[3:5]) | {"llama_4_scaling_beta": random.choice([0.1, 0.5])}
    return dict(random.choice(ROPES[:1] if architecture == "Phi3ForCausalLM" else ROPES))
