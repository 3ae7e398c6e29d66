"""Decoders with ungated feedforward networks: Nemotron, Jais 2, Arcee, Apertus."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, PlainFFNSpec, QkNormSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family

APERTUS = TensorNames(before_mixer="attention_layernorm", before_ffn="feedforward_layernorm")


@family("NemotronForCausalLM")
def nemotron(c: ModelConfig) -> ModelSpec:
    """Half of each head turns."""
    norm, bias = c.layer_norm(offset=1.0, key="norm_eps"), c.flag("attention_bias")
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width(), share=0.5))
    ffn = PlainFFNSpec(c.inner, c.activation("relu2"), c.flag("mlp_bias"))
    return c.model([c.layer(LayerNorms.pre(norm), mixer, ffn)] * c.count, norm)


@family("Jais2ForCausalLM")
def jais2(c: ModelConfig) -> ModelSpec:
    norm, bias = c.layer_norm(), c.flag("attention_bias", True)
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width()))
    ffn = PlainFFNSpec(c.inner, c.activation("relu2"), c.flag("mlp_bias", True))
    return c.model([c.layer(LayerNorms.pre(norm), mixer, ffn)] * c.count, norm)


@family("ArceeForCausalLM")
def arcee(c: ModelConfig) -> ModelSpec:
    rms, bias = c.rms(1e-5), c.flag("attention_bias")
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width()))
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, PlainFFNSpec(c.inner, c.activation("relu2"), c.flag("mlp_bias")))]
        * c.count,
        rms,
    )


@family("ApertusForCausalLM")
def apertus(c: ModelConfig) -> ModelSpec:
    c.assume_rope(
        rope_type="llama3",
        rope_theta=1.2e7,
        factor=8.0,
        original_max_position_embeddings=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    c.require("qk_norm", True)
    for key in ("post_norm", "mlp_bias"):
        c.require(key, False)
    rms, bias = c.rms(1e-5), c.flag("attention_bias")
    mixer = c.attention(norm=QkNormSpec(rms), bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=1.2e7))
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, PlainFFNSpec(c.inner, c.activation("xielu")))] * c.count,
        rms,
        names=APERTUS,
    )
