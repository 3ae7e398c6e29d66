"""Falcon-H1: attention and Mamba 2 in parallel in each layer, and a multiplier for every projection."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import LARGEST_FLOAT, shown
from ..spec.model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, LayerSpec, ModelSpec, ParallelMixersSpec
from ..spec.recurrent_config import MOST_SEEN, heads_of, mamba2, time_limits
from ..spec.recurrent_spec import Mamba2Spec
from ..spec.tensor_names import TensorNames
from .family_registry import family

FALCON_H1 = TensorNames(
    norm="model.final_layernorm",
    before_ffn="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
)


@family("FalconH1ForCausalLM")
def falcon_h1(c: ModelConfig) -> ModelSpec:
    """The multiplier of keys is that of scores."""
    c.raw(
        "mamba_chunk_size",
        "num_logits_to_keep",
        "mamba_use_mlp",
        "attn_layer_indices",
        "mlp_expansion_factor",
        "time_step_min",
        "time_step_max",
        "time_step_floor",
    )
    rms, bias, dim = c.rms(1e-5), c.flag("attention_bias"), c.width()
    scale = dim**-0.5 * c.number("key_multiplier", 1.0)
    attention = c.attention(
        kv_heads=8 if c.values.get("num_key_value_heads") is None else None,
        bias=bias,
        out_bias=bias,
        scale=scale,
        rope=c.rope(dim),
    )
    mixers = ParallelMixersSpec(
        (attention, _recurrent(c)),
        (c.number("attention_in_multiplier", 1.0), 1.0),
        (c.number("attention_out_multiplier", 1.0), c.number("ssm_out_multiplier", 1.0)),
    )
    gate, down = _numbers(c, "mlp_multipliers", 2) or (1.0, 1.0)
    ffn = GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias"), scale=gate, out_scale=down)
    scales: dict[str, Any] = {
        "embed_scale": c.number("embedding_multiplier", 1.0),
        "logit_scale": c.number("lm_head_multiplier", 1.0),
    }
    return c.model([LayerSpec(LayerNorms.pre(rms), mixers, ffn)] * c.count, rms, names=FALCON_H1, **scales)


def _recurrent(c: ModelConfig) -> Mamba2Spec:
    lora_expand = c.positive("mamba_expand", 2) * c.hidden
    inner = c.optional("mamba_d_ssm", int) or lora_expand
    heads, dim = heads_of(c, inner, "mamba_n_heads", "mamba_d_head", 128)
    first, normed = c.flag("mamba_norm_before_gate", True), c.flag("mamba_rms_norm")
    return mamba2(
        c,
        heads,
        dim,
        c.positive("mamba_d_state", 256, MOST_WIDTH),
        c.positive("mamba_n_groups", 1, MOST_HEADS),
        c.positive("mamba_d_conv", 4, MOST_SEEN),
        c.rms(1e-5).eps if normed else None,
        norm_first=first and normed,
        activation=c.activation(),
        bias=c.flag("mamba_proj_bias"),
        out_bias=c.flag("projectors_bias"),
        conv_bias=c.flag("mamba_conv_bias", True),
        scale=c.number("ssm_in_multiplier", 1.0),
        scales=_numbers(c, "ssm_multipliers", 5),
        **time_limits(c),
    )


def _numbers(c: ModelConfig, key: str, count: int) -> tuple[float, ...]:
    """() where nothing is written."""
    found = c.raw(key)
    if found is None:
        return ()
    numbers = isinstance(found, list) and all(
        type(each) in (int, float) and abs(each) <= LARGEST_FLOAT for each in found
    )
    if not numbers or len(found) != count:
        raise ConfigError(f"{c.where}: {key}={shown(found)} must hold {count} numbers")
    return tuple(map(float, found))
