"""nanochat: norms without weights, also after the embeddings and after RoPE, which rotates backwards."""

from __future__ import annotations

from dataclasses import replace

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, NormSpec, PlainFFNSpec, QkNormSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family

NANOCHAT = TensorNames(up="mlp.fc1", down="mlp.fc2")


@family("NanoChatForCausalLM")
def nanochat(c: ModelConfig) -> ModelSpec:
    c.assume(final_logit_softcapping=15.0)
    rms, bias = NormSpec(c.number("rms_norm_eps", 1e-6), weight=False), c.flag("attention_bias")
    rope = replace(c.rope(c.width()), backwards=True)
    mixer = c.attention(norm=QkNormSpec(rms, after=True), bias=bias, out_bias=bias, rope=rope)
    layers = [c.layer(LayerNorms.pre(rms), mixer, PlainFFNSpec(c.inner, c.activation("relu2")))] * c.count
    cap = c.optional("final_logit_softcapping", float)
    return c.model(layers, rms, embed_norm=rms, logit_softcap=cap, names=NANOCHAT)
