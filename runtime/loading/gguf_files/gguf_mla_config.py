"""Reads latent attention (MLA) and the experts of such models from a GGUF file's keys: DeepSeek V2 and V3, Kimi K2,
GLM-4.7-Flash, MiniCPM 3.

Such files describe attention to the latents themselves, as one key head of `kv_lora_rank` and the numbers that turn;
keys that end in `_mla` have the sizes of the heads. Older files describe the heads, and hold the up-projections of keys
and values as one tensor.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...models.spec.json_fields import JsonFields

REMEDY = "take a newer GGUF file of this model, or its safetensors checkpoint"
SIGMOID = 2  # as expert_gating_func


def deepseek(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """V3 chooses experts by sigmoids, V2 by a softmax."""
    further = keys.get("nextn_predict_layers", int, 0)
    found = _heads(keys) | {
        "num_hidden_layers": keys.get("block_count", int) - further,
        "num_nextn_predict_layers": further,
    }
    if keys.get("expert_gating_func", int, 1) == SIGMOID:
        return (
            found
            | _groups(keys)
            | {
                "architectures": ["DeepseekV3ForCausalLM"],
                "norm_topk_prob": keys.get("expert_weights_norm", bool, False),
            }
        )
    groups = _groups(keys)
    return found | groups | {"topk_method": "greedy" if groups["n_group"] == 1 else "group_limited_greedy"}


def minicpm3(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """No key has the multipliers and the width of values: they are those of the one model that is published."""
    turned = keys.positive("rope.dimension_count")
    width = keys.positive("embedding_length") // keys.positive("attention.head_count")
    keys.require("attention.value_length", width)
    sizes = {
        "head_dim": turned,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": keys.positive("attention.key_length") - turned,
        "v_head_dim": width,
    }
    return sizes | {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}


def _heads(keys: JsonFields) -> dict[str, Any]:
    heads, rank, turned = (
        keys.positive(key) for key in ("attention.head_count", "attention.kv_lora_rank", "rope.dimension_count")
    )
    few, absorbed = keys.optional("attention.q_lora_rank", int), keys.optional("attention.key_length_mla", int)
    if absorbed is not None:
        for key, size in (("head_count_kv", 1), ("key_length", rank + turned), ("value_length", rank)):
            keys.require(f"attention.{key}", size)
    end = "" if absorbed is None else "_mla"
    return {
        "num_key_value_heads": heads,
        "head_dim": turned,
        "kv_lora_rank": rank,
        "q_lora_rank": few or None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": keys.positive(f"attention.key_length{end}") - turned,
        "v_head_dim": keys.positive(f"attention.value_length{end}"),
    }


def _groups(keys: JsonFields) -> dict[str, int]:
    """Files of 2025 may lack them, and are computed otherwise than the model by who does not miss them."""
    if keys.raw("expert_group_count") is None:
        raise ConfigError(
            f"{keys.where}: key 'expert_group_count' is missing, so which experts may be chosen together is not "
            f"known; {REMEDY}"
        )
    return {"n_group": keys.positive("expert_group_count"), "topk_group": keys.positive("expert_group_used_count")}


def warmth(keys: JsonFields) -> dict[str, float]:
    """What YaRN multiplies scores with, in two keys that all published files have alike; stored as a tenth."""
    tenth = keys.optional("rope.scaling.yarn_log_multiplier", float)
    if tenth is None:
        raise ConfigError(
            f"{keys.where}: key 'rope.scaling.yarn_log_multiplier' is missing, so how YaRN scales scores is not "
            f"known; {REMEDY}"
        )
    return dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * tenth, 6))
