"""Helium: Llama with interleaved RoPE."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from .family_registry import family


@family("HeliumForCausalLM")
def helium(c: ModelConfig) -> ModelSpec:
    c.assume(head_dim=128)
    rms, rope = c.rms(1e-8), c.rope(c.width(), theta=1e5, interleaved=True)
    mixer = c.attention(bias=c.flag("attention_bias"), rope=rope)
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias")))] * c.count, rms
    )
