"""Code World Model: Llama with one full-attention layer, then three with a sliding window."""

from __future__ import annotations

from ..spec.model_config import ModelConfig, every
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from .family_registry import family


@family("CwmForCausalLM")
def cwm(c: ModelConfig) -> ModelSpec:
    c.assume(num_key_value_heads=8, head_dim=128, sliding_window=8192)
    c.assume_rope(
        rope_type="llama3",
        rope_theta=1e6,
        factor=16.0,
        original_max_position_embeddings=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    rms, rope = c.rms(1e-5), c.rope(c.width(), theta=1e6)
    mixers = [c.attention(rope=rope, window=window) for window in c.windows(every(c.count + 3, 4)[3:])]
    ffn = GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias"))
    return c.model([c.layer(LayerNorms.pre(rms), mixer, ffn) for mixer in mixers], rms)
