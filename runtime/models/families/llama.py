"""Llama, and models that differ from it by a flag: Mistral, Phi-3."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family


@family("LlamaForCausalLM", "IQuestCoderForCausalLM")
def llama(c: ModelConfig) -> ModelSpec:
    c.require("is_llama_config", True)  # SmolLM's files have these two
    c.require("rope_interleaved", False)
    bias, rms, dim = c.flag("attention_bias"), c.rms(), c.width()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(dim))
    ffn = GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias"))
    return c.model([c.layer(LayerNorms.pre(rms), mixer, ffn)] * c.count, rms)


@family("MistralForCausalLM")
def mistral(c: ModelConfig) -> ModelSpec:
    """The window holds for all layers; where the key is absent it is 4096."""
    window = 4096 if "sliding_window" not in c.values else c.optional("sliding_window", int)
    rms = c.rms()
    mixer = c.attention(kv_heads=8, rope=c.rope(c.width()), window=window)
    return c.model([c.layer(LayerNorms.pre(rms), mixer)] * c.count, rms)


PHI3 = TensorNames(qkv=MergedProjections("self_attn.qkv_proj"), gate_up=MergedProjections("mlp.gate_up_proj"))


@family("Phi3ForCausalLM")
def phi3(c: ModelConfig) -> ModelSpec:
    c.assume(original_max_position_embeddings=4096)
    c.require("full_attn_mod", 1)
    c.require("interpolate_factor", 1)
    c.require("lm_head_bias", False)
    c.require("mlp_bias", False)
    rms, window = c.rms(1e-5), c.optional("sliding_window", int)
    mixer = c.attention(rope=c.rope(c.width(), share=1.0), window=window)
    return c.model([c.layer(LayerNorms.pre(rms), mixer)] * c.count, rms, names=PHI3)
