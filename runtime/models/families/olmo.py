"""OLMo: norms without parameters; OLMo 2 and 3: post-norms, QK-norm over all heads; OLMoE has experts."""

from __future__ import annotations

from ..spec.model_config import ModelConfig, every
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec, NormSpec, QkNormSpec, RouterSpec
from .family_registry import family


@family("OlmoForCausalLM")
def olmo(c: ModelConfig) -> ModelSpec:
    norm, bias = NormSpec(1e-5, "layer", weight=False), c.flag("attention_bias")
    mixer = c.attention(bias=bias, out_bias=bias, clip=c.optional("clip_qkv", float), rope=c.rope(c.width()))
    return c.model([c.layer(LayerNorms.pre(norm), mixer)] * c.count, norm)


@family("Olmo2ForCausalLM")
def olmo2(c: ModelConfig) -> ModelSpec:
    rms, bias = c.rms(1e-5), c.flag("attention_bias")
    mixer = c.attention(norm=QkNormSpec(rms, "all"), bias=bias, out_bias=bias, rope=c.rope(c.width()))
    return c.model([c.layer(LayerNorms.post(rms), mixer)] * c.count, rms)


@family("Olmo3ForCausalLM")
def olmo3(c: ModelConfig) -> ModelSpec:
    """Three layers with a window, then one without, and only that one's rotation is scaled."""
    c.assume(sliding_window=4096)
    rms, bias, dim = c.rms(1e-5), c.flag("attention_bias"), c.width()
    kinds = c.kinds(every(c.count, 4))
    if "sliding_attention" in kinds and c.raw("rope_parameters") is None:
        c.require("rope_theta", 5e5)  # transformers takes another one for full layers only
    ropes = {kind: c.rope(dim, kind, theta=5e5) for kind in dict.fromkeys(kinds)}
    mixers = [
        c.attention(norm=QkNormSpec(rms, "all"), bias=bias, out_bias=bias, rope=ropes[kind], window=window)
        for kind, window in zip(kinds, c.windows(kinds), strict=True)
    ]
    return c.model([c.layer(LayerNorms.post(rms), mixer) for mixer in mixers], rms)


@family("OlmoeForCausalLM")
def olmoe(c: ModelConfig) -> ModelSpec:
    c.require("clip_qkv")  # it would come after the norm
    c.require("head_dim", c.hidden // c.heads)
    rms, bias = c.rms(1e-5), c.flag("attention_bias")
    mixer = c.attention(norm=QkNormSpec(rms, "all"), bias=bias, out_bias=bias, rope=c.rope(c.width()))
    experts = c.experts(GatedFFNSpec(c.inner, c.activation()), RouterSpec(normalise=c.flag("norm_topk_prob")))
    return c.model([c.layer(LayerNorms.pre(rms), mixer, experts)] * c.count, rms)
