"""MiniCPM 1 to 4: Llama with multipliers of embeddings, branches and logits; MiniCPM 3 with latent attention."""

from __future__ import annotations

from ..spec.latent_attention_config import latent
from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from .family_registry import family


@family("MiniCPMForCausalLM")
def minicpm(c: ModelConfig) -> ModelSpec:
    bias, rms = c.flag("attention_bias"), c.rms()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width()))
    branch = c.number("scale_depth", 1.0) / c.count**0.5
    layer = c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation()), branch=branch)
    logits = c.number("dim_model_base", 1.0) / c.hidden
    return c.model([layer] * c.count, rms, tied=True, embed_scale=c.number("scale_emb", 1.0), logit_scale=logits)


@family("MiniCPM3ForCausalLM")
def minicpm3(c: ModelConfig) -> ModelSpec:
    c.assume(kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=c.hidden // c.heads)
    rms, mixer = c.rms(1e-5), latent(c, interleaved=False, query_rank=768)
    branch = (
        1.0
        if c.raw("scale_depth") is None and "scale_depth" in c.values
        else c.number("scale_depth", 1.4) / c.count**0.5
    )
    layer = c.layer(
        LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias")), branch=branch
    )
    base = (
        c.hidden
        if c.raw("dim_model_base") is None and "dim_model_base" in c.values
        else c.number("dim_model_base", 256.0)
    )
    return c.model(
        [layer] * c.count, rms, tied=True, embed_scale=c.number("scale_emb", 12.0), logit_scale=base / c.hidden
    )
