"""Configurations with one key left out, null, or foreign: what transformers
ignores must change nothing, or be refused.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import transformers
from family_walk_draws import wrapper

LARGE = {  # without them a model has the published sizes
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "intermediate_size_mlp",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "n_embd",
    "d_model",
    "n_layer",
    "n_layers",
    "num_layers",
    "ffn_dim",
}
ASIDE = {"architectures", "model_type", "vision_config", "text_config", "return_dict"}
FOREIGN: dict[str, Any] = {  # keys of other families, with values that change much
    "rms_norm_eps": 0.2,
    "norm_eps": 0.2,
    "layer_norm_eps": 0.2,
    "layer_norm_epsilon": 0.2,
    "layernorm_epsilon": 0.2,
    "norm_epsilon": 0.2,
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "activation_function": "relu",
    "activation": "relu",
    "head_dim": 8,
    "rotary_dim": 4,
    "rotary_pct": 0.5,
    "rotary_emb_base": 50.0,
    "rope_theta": 50.0,
    "partial_rotary_factor": 0.5,
    "rope_local_base_freq": 50.0,
    "sliding_window": 5,
    "window_size": 5,
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window_pattern": 2,
    "max_window_layers": 1,
    "attention_bias": True,
    "mlp_bias": True,
    "use_bias": True,
    "bias": True,
    "qkv_bias": True,
    "use_qkv_bias": True,
    "use_qk_norm": True,
    "qk_layernorm": True,
    "clip_qkv": 0.3,
    "logit_scale": 3.0,
    "logits_scaling": 3.0,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.7,
    "scale_embedding": False,
    "scale_attn_weights": False,
    "alibi": True,
    "parallel_attn": True,
    "use_parallel_residual": True,
    "final_logit_softcapping": 2.0,
    "attn_logit_softcapping": 2.0,
    "no_rope_layers": [0, 1],
    "query_pre_attn_scalar": 5,
    "tie_word_embeddings": True,
    "num_key_value_heads": 2,
    "multi_query": True,
    "original_max_position_embeddings": 8,
    "scale_emb": 3.0,
    "scale_depth": 0.5,
    "use_post_norm": True,
    "attention_dropout": 0.3,
    "pretraining_tp": 2,
    "is_decoder": True,
    "scale_attn_by_inverse_layer_idx": True,
    "num_kv_heads": 2,
    "n_inner": 40,
    "ffn_dim": 40,
    "chunk_size_feed_forward": 0,
    "position_embedding_type": "alibi",
    "attn_implementation": "sdpa",
    "use_bidirectional_attention": True,
    "rope_scaling": {"type": "linear", "factor": 4.0},
    "quantization_config": None,
}


def whole(architecture: str) -> dict[str, Any]:
    """A small configuration with every key of the class that the walk knows: what transformers itself would save."""
    kind = getattr(transformers, architecture).config_class
    text = kind.sub_configs.get("text_config") if hasattr(kind, "sub_configs") else None
    sizes = {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 16,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "ffn_dim": 48,
        "ffn_hidden_size": 48,
        "n_inner": 48,
        "vocab_size": 320,
        "vocab_size_per_layer_input": 320,
        "max_position_embeddings": 256,
        "sliding_window": 9,
        "rotary_dim": 8,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 9,
        "max_seq_len": 256,
        "n_ctx": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "num_experts": 6,
        "n_routed_experts": 6,
        "num_local_experts": 6,
        "moe_num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_k": 2,
        "moe_topk": 2,
        "state_size": 8,
        "ssm_state_size": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "mamba_n_heads": 8,
        "mamba_d_state": 8,
        "mamba_d_ssm": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "moe_shared_expert_intermediate_size": 24,
        "linear_head_dim": 8,
        "linear_num_heads": 2,
        "kv_lora_rank": 16,
        "q_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
        "intermediate_size_mlp": 24,
    }
    names, fields = (text or kind).attribute_map, {field.name for field in dataclasses.fields(text or kind)}
    own = {names.get(key, key): value for key, value in sizes.items() if names.get(key, key) in fields}
    own |= {"num_heads": 8, "n_groups": 2} if {"num_heads", "state_size"} <= fields else {}
    made = (text or kind)(**own).to_dict()
    if text is not None:
        made = kind(text_config=made, **wrapper(kind)).to_dict()
    return made | {"architectures": [architecture]}


def variants(architecture: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is different, and the configuration."""
    base = whole(architecture)
    for key, value in base.get("text_config", base).items():
        if key not in ASIDE | LARGE:
            yield f"no {key}", changed(base, **{key: ...})
            if value is not None:
                yield f"{key}=null", changed(base, **{key: None})
    for key, value in FOREIGN.items():
        yield f"{key}={value!r}", changed(base, **{key: value})


def changed(base: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A copy with keys of the text model set; one set to `...` is taken out."""
    made = copy.deepcopy(base)
    text = made.get("text_config", made)
    text.update(copy.deepcopy(keys))
    for key in [key for key, value in text.items() if value is ...]:
        del text[key]
    return made
