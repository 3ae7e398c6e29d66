"""InternLM 3: Llama with its own config names for the biases."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from .family_registry import family


@family("InternLM3ForCausalLM")
def internlm3(c: ModelConfig) -> ModelSpec:
    c.assume(num_key_value_heads=2, head_dim=128)
    rms, bias = c.rms(1e-5), c.flag(("bias", "mlp_bias"))
    mixer = c.attention(bias=c.flag(("qkv_bias", "attention_bias")), out_bias=bias, rope=c.rope(c.width()))
    return c.model([c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation(), bias))] * c.count, rms)
