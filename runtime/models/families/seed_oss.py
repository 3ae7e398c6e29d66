"""Seed-OSS: Llama with biases on queries, keys and values."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from .family_registry import family


@family("SeedOssForCausalLM")
def seed_oss(c: ModelConfig) -> ModelSpec:
    c.assume(num_key_value_heads=8, head_dim=128)
    rms = c.rms()
    mixer = c.attention(
        bias=c.flag("attention_bias", True), out_bias=c.flag("attention_out_bias"), rope=c.rope(c.width())
    )
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias")))] * c.count, rms
    )
