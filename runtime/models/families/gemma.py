"""Gemma: norms scaled by 1 + weight, gelu, scaled embeddings; from Gemma 2 on also post-norms and sliding windows."""

from __future__ import annotations

from typing import Any

from ..spec.model_config import ModelConfig, every
from ..spec.model_spec import Activation, AttentionSpec, GatedFFNSpec, LayerNorms, ModelSpec, NormSpec, QkNormSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family

SANDWICH = TensorNames(before_ffn="pre_feedforward_layernorm")


def _gelu(c: ModelConfig) -> Activation:
    c.require("hidden_act", "gelu", "gelu_pytorch_tanh")  # a relic next to hidden_activation
    return c.activation("gelu_tanh", "hidden_activation")


def _model(
    c: ModelConfig,
    mixers: list[AttentionSpec],
    norms: LayerNorms,
    last: NormSpec,
    ffn: GatedFFNSpec,
    names: TensorNames,
) -> ModelSpec:
    cap = c.optional("final_logit_softcapping", float)
    layers = [c.layer(norms, mixer, ffn) for mixer in mixers]
    return c.model(layers, last, tied=True, embed_scale=c.hidden**0.5, logit_softcap=cap, names=names)


@family("GemmaForCausalLM")
def gemma(c: ModelConfig) -> ModelSpec:
    """Where the files say gelu they mean its approximation by tanh."""
    rms, bias, dim = c.rms(offset=1.0), c.flag("attention_bias"), c.width(256)
    c.require("final_logit_softcapping")
    c.require("hidden_activation", "gelu_pytorch_tanh")  # next to hidden_act, which counts
    mixer = c.attention(width=dim, bias=bias, out_bias=bias, rope=c.rope(dim))
    ffn = GatedFFNSpec(c.inner, "gelu_tanh" if c.raw("hidden_act") == "gelu" else c.activation("gelu_tanh"))
    return _model(c, [mixer] * c.count, LayerNorms.pre(rms), rms, ffn, TensorNames())


def _second(c: ModelConfig) -> list[AttentionSpec]:
    c.raw("sliding_window_size")  # next to sliding_window, which counts
    c.assume(sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    dim, bias = c.width(256), c.flag("attention_bias")
    asked: dict[str, Any] = {
        "scale": c.rate("query_pre_attn_scalar", 256.0) ** -0.5,
        "softcap": c.optional("attn_logit_softcapping", float),
        "rope": c.rope(dim),
        "bias": bias,
        "out_bias": bias,
    }
    return [c.attention(kv_heads=4, width=dim, window=window, **asked) for window in c.windows(every(c.count, 2))]


@family("Gemma2ForCausalLM")
def gemma2(c: ModelConfig) -> ModelSpec:
    rms, mixers = c.rms(offset=1.0), _second(c)
    return _model(c, mixers, LayerNorms.both(rms), rms, GatedFFNSpec(c.inner, _gelu(c)), SANDWICH)


@family("VaultGemmaForCausalLM")
def vault_gemma(c: ModelConfig) -> ModelSpec:
    """Gemma 2 without the norms after the branches."""
    rms, mixers = c.rms(offset=1.0), _second(c)
    return _model(c, mixers, LayerNorms.pre(rms), rms, GatedFFNSpec(c.inner, _gelu(c)), SANDWICH)


@family("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
def gemma3(c: ModelConfig) -> ModelSpec:
    """Files of the wrapper leave out what the smallest one has."""
    c.assume(
        vocab_size=262_208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131_072,
        sliding_window=4096,
    )
    c.require("attn_logit_softcapping")
    if c.architecture == "Gemma3ForConditionalGeneration":
        c.require("final_logit_softcapping")
    rms, dim, bias = c.rms(offset=1.0), c.width(), c.flag("attention_bias")
    kinds = c.kinds(every(c.count, c.positive("sliding_window_pattern", 6)))
    ropes = {
        "full_attention": c.rope(dim, "full_attention", theta=1e6),
        "sliding_attention": c.rope(dim, "sliding_attention", theta_keys=("rope_local_base_freq",)),
    }
    scale = c.rate("query_pre_attn_scalar", 256.0) ** -0.5
    mixers = [
        c.attention(norm=QkNormSpec(rms), scale=scale, rope=ropes[kind], window=window, bias=bias, out_bias=bias)
        for kind, window in zip(kinds, c.windows(kinds), strict=True)
    ]
    return _model(c, mixers, LayerNorms.both(rms), rms, GatedFFNSpec(c.inner, _gelu(c)), SANDWICH)
