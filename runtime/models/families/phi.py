"""Phi 1, 1.5 and 2, and Persimmon: LayerNorm, partial RoPE, ungated feedforward networks, biases everywhere."""

from __future__ import annotations

from ..config import Config
from ..names import Merged, Names
from ..spec import HeadNorm, Model, Norms, Plain
from .registry import family

PHI = Names(
    norm="model.final_layernorm", q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm", output="self_attn.dense",
    up="mlp.fc1", down="mlp.fc2",
)  # fmt: skip


@family("PhiForCausalLM")
def phi(c: Config) -> Model:
    norm = c.layer_norm()
    heads = HeadNorm(norm) if c.flag("qk_layernorm") else None
    mixer = c.attention(norm=heads, bias=True, out_bias=True, rope=c.rope(c.width(), share=0.5))
    layer = c.layer(Norms.beside(norm), mixer, Plain(c.inner, c.activation("gelu_new"), bias=True))
    return c.model([layer] * c.count, norm, head_bias=True, names=PHI)


PERSIMMON = Names(
    norm="model.final_layernorm", q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm", output="self_attn.dense",
    qkv=Merged("self_attn.query_key_value", "heads"), up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h",
)  # fmt: skip


@family("PersimmonForCausalLM")
def persimmon(c: Config) -> Model:
    norm = c.layer_norm()
    heads = HeadNorm(norm) if c.flag("qk_layernorm", True) else None
    mixer = c.attention(norm=heads, bias=True, out_bias=True, rope=c.rope(c.width(), share=0.5))
    layer = c.layer(Norms.pre(norm), mixer, Plain(c.inner, c.activation("relu2"), bias=True))
    return c.model([layer] * c.count, norm, names=PERSIMMON)
