"""MiMo: 7B is Qwen 2 without its multi-token layer; V2-Flash has windows with sinks, narrow values, experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, ExpertsSpec, Feedforward, GatedFFNSpec, LayerNorms, ModelSpec, RouterSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family
from .qwen import second

FULL, WINDOW = "full_attention", "sliding_attention"
FLASH = TensorNames(sinks="self_attn.attention_sink_bias", ignored=(r"model\.mtp\..*",))
OF_WINDOWS = ("swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim")  # the same as of other layers


@family("MiMoForCausalLM")
def mimo(c: ModelConfig) -> ModelSpec:
    c.raw("num_nextn_predict_layers")
    c.require("attention_bias", True)
    return second(c, 1e4, names=TensorNames(ignored=(r"model\.mtp_layers\..*",)))


@family("MiMoV2FlashForCausalLM")
def mimo_v2_flash(c: ModelConfig) -> ModelSpec:
    """The published files say by lists of 0 and 1 which layers have windows and experts, transformers by names."""
    c.require("add_full_attention_sink_bias", False)
    c.require("add_swa_attention_sink_bias", True)
    c.raw("hybrid_block_size", "attention_chunk_size", "num_nextn_predict_layers")
    rms = c.rms(1e-5, key="layernorm_epsilon" if c.raw("layernorm_epsilon") is not None else "rms_norm_eps")
    mixers, ffns = _mixers(c), dict[str, Feedforward](dense=GatedFFNSpec(c.inner, c.activation()), sparse=_experts(c))
    kinds = _kinds(
        c,
        "layer_types",
        "hybrid_layer_pattern",
        (FULL, WINDOW),
        [FULL if not index or not (index + 1) % 6 else WINDOW for index in range(c.count)],
    )
    feeds = _kinds(
        c,
        "mlp_layer_types",
        "moe_layer_freq",
        ("dense", "sparse"),
        ["sparse" if index else "dense" for index in range(c.count)],
    )
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixers[kind], ffns[feed]) for kind, feed in zip(kinds, feeds, strict=True)],
        rms,
        names=FLASH,
    )


def _kinds(c: ModelConfig, key: str, numbers: str, names: tuple[str, str], default: list[str]) -> list[str]:
    """Of each layer one of two names, or their numbers under another key."""
    found, listed = c.raw(key), c.raw(numbers)
    if found is None and isinstance(listed, list):
        found = [names[each] if type(each) is int and each in (0, 1) else each for each in listed]
    kinds = default if found is None else found
    if not isinstance(kinds, list) or len(kinds) != c.count or any(kind not in names for kind in kinds):
        raise ConfigError(f"{c.where}: {key}={shown(found)} must name {names[0]} or {names[1]} {c.count} times")
    return kinds


def _mixers(c: ModelConfig) -> dict[str, AttentionSpec]:
    """Layers with windows have twice as many heads of keys, and sinks."""
    dim, values = c.width(192), c.positive("v_head_dim", 128, MOST_WIDTH)
    for key, same in zip(OF_WINDOWS, (c.heads, dim, values), strict=True):
        c.require(key, same)
    scaled = c.raw("attention_value_scale") is not None or "attention_value_scale" not in c.values
    options: dict[str, Any] = {
        "value_dim": values,
        "value_scale": c.number("attention_value_scale", 0.707) if scaled else 1.0,
        "bias": c.flag("attention_bias"),
    }
    full = c.attention(kv_heads=4, width=dim, rope=c.rope(dim, FULL, theta=5e6, share=_share(c, FULL)), **options)
    keys = c.positive("swa_num_key_value_heads", 2 * full.kv_heads, MOST_HEADS)
    if c.heads % keys:
        raise ConfigError(f"{c.where}: {c.heads} heads cannot share {keys} heads of keys evenly")
    rope = c.rope(dim, WINDOW, theta_keys=("swa_rope_theta",), share=_share(c, WINDOW))
    return {FULL: full, WINDOW: replace(full, kv_heads=keys, rope=rope, window=_window(c), sinks=True)}


def _share(c: ModelConfig, kind: str) -> float:
    """Of a head that turns where nothing is written: all of it, where the rotation is scaled."""
    written = c.raw("rope_parameters")
    own = written.get(kind) if isinstance(written, dict) else None
    scaled = isinstance(own, dict) and own.get("rope_type", "default") != "default"
    return 1.0 if scaled else 0.334


def _window(c: ModelConfig) -> int:
    """`sliding_window_size` does not count the token itself, as `sliding_window` of transformers does."""
    before = c.optional("sliding_window_size", int)
    said = c.positive("sliding_window", 129)
    return said if before is None else c.positive("sliding_window_size") + 1


def _experts(c: ModelConfig) -> ExpertsSpec:
    """As DeepSeek V3 has them, none of them shared."""
    c.require("scoring_func", "sigmoid")
    c.require("topk_method", "noaux_tc")
    c.require("n_shared_experts", 0)
    c.assume(n_routed_experts=256, num_experts_per_tok=8)
    inner = c.positive("moe_intermediate_size", 2048, most=MOST_WIDTH)
    router = RouterSpec(
        "sigmoid",
        correction=True,
        groups=c.positive("n_group", 1, most=MOST_WIDTH),
        kept_groups=c.positive("topk_group", 1, most=MOST_WIDTH),
        normalise=c.flag_unless_null("norm_topk_prob", True),
        floor=1e-20,
        scale=c.number("routed_scaling_factor", 1.0),
    )
    return c.experts(GatedFFNSpec(inner, c.activation()), router, ("n_routed_experts", "num_local_experts"))
