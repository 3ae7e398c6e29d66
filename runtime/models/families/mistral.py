"""Ministral: sliding windows per layer, queries scaled by position."""

from __future__ import annotations

from ...layers.rope_parameters import RopeParameters
from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, QueryTemperature
from .family_registry import family


@family("MinistralForCausalLM")
def ministral(c: ModelConfig) -> ModelSpec:
    c.assume(sliding_window=4096, num_key_value_heads=8)
    rms, rope = c.rms(), c.rope(c.width())
    mixers = [c.attention(rope=rope, window=window) for window in c.windows(["sliding_attention"] * c.count)]
    return c.model([c.layer(LayerNorms.pre(rms), mixer) for mixer in mixers], rms)


@family("Ministral3ForCausalLM")
def ministral3(c: ModelConfig) -> ModelSpec:
    """A window, if there is one, holds for all layers."""
    c.assume(num_key_value_heads=8, head_dim=128)
    c.assume_rope(
        rope_type="yarn",
        rope_theta=1e6,
        factor=16.0,
        original_max_position_embeddings=16384,
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        llama_4_scaling_beta=0.1,
    )
    c.require("layer_types", ["full_attention"] * c.count)
    rms, window = c.rms(1e-5), c.optional("sliding_window", int)
    rope = c.rope(c.width(), others=("llama_4_scaling_beta", "max_position_embeddings"))
    mixer = c.attention(rope=rope, window=window, temperature=position_temperature(c, rope))
    return c.model([c.layer(LayerNorms.pre(rms), mixer)] * c.count, rms)


def position_temperature(c: ModelConfig, rope: RopeParameters) -> QueryTemperature | None:
    written = c.rope_fields()
    beta = written.optional("llama_4_scaling_beta", float)
    period = rope.original_context or written.positive("original_max_position_embeddings")
    return None if beta is None else QueryTemperature(beta, period)
