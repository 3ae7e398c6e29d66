"""StableLM: LayerNorm, RoPE on a quarter of each head; StableLM 2 may have a norm per head, and parallel branches."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, QkNormSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family

STABLELM = TensorNames(q_norm="self_attn.q_layernorm.norms.{}", k_norm="self_attn.k_layernorm.norms.{}")


@family("StableLmForCausalLM")
def stablelm(c: ModelConfig) -> ModelSpec:
    c.require("head_dim", c.hidden // c.heads)
    norm, rope = c.layer_norm(), c.rope(c.width(), share=0.25)
    heads = QkNormSpec(c.layer_norm(bias=False), "each") if c.flag("qk_layernorm") else None
    mixer = c.attention(norm=heads, bias=c.flag("use_qkv_bias"), rope=rope)
    norms = LayerNorms.parallel_branches(norm) if c.flag("use_parallel_residual") else LayerNorms.pre(norm)
    return c.model([c.layer(norms, mixer)] * c.count, norm, names=STABLELM)
