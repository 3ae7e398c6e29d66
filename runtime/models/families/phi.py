"""Phi 1, 1.5 and 2, and Persimmon: LayerNorm, partial RoPE, ungated feedforward networks, biases everywhere."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, PlainFFNSpec, QkNormSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

PHI = TensorNames(
    norm="model.final_layernorm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    output="self_attn.dense",
    up="mlp.fc1",
    down="mlp.fc2",
)


@family("PhiForCausalLM")
def phi(c: ModelConfig) -> ModelSpec:
    norm = c.layer_norm()
    heads = QkNormSpec(norm) if c.flag("qk_layernorm") else None
    mixer = c.attention(norm=heads, bias=True, out_bias=True, rope=c.rope(c.width(), share=0.5))
    layer = c.layer(
        LayerNorms.parallel_branches(norm), mixer, PlainFFNSpec(c.inner, c.activation("gelu_new"), bias=True)
    )
    return c.model([layer] * c.count, norm, head_bias=True, names=PHI)


PERSIMMON = TensorNames(
    norm="model.final_layernorm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    output="self_attn.dense",
    qkv=MergedProjections("self_attn.query_key_value", "heads"),
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)


@family("PersimmonForCausalLM")
def persimmon(c: ModelConfig) -> ModelSpec:
    norm = c.layer_norm()
    heads = QkNormSpec(norm) if c.flag("qk_layernorm", True) else None
    mixer = c.attention(norm=heads, bias=True, out_bias=True, rope=c.rope(c.width(), share=0.5))
    layer = c.layer(LayerNorms.pre(norm), mixer, PlainFFNSpec(c.inner, c.activation("relu2"), bias=True))
    return c.model([layer] * c.count, norm, names=PERSIMMON)
