"""nanochat: norms without weights, also after the embeddings and after RoPE, which rotates backwards."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..names import Names
from ..spec import HeadNorm, Model, Norm, Norms, Plain
from .registry import family

NANOCHAT = Names(up="mlp.fc1", down="mlp.fc2")


@family("NanoChatForCausalLM")
def nanochat(c: Config) -> Model:
    c.assume(final_logit_softcapping=15.0)
    rms, bias = Norm(c.number("rms_norm_eps", 1e-6), weight=False), c.flag("attention_bias")
    rope = replace(c.rope(c.width()), backwards=True)
    mixer = c.attention(norm=HeadNorm(rms, after=True), bias=bias, out_bias=bias, rope=rope)
    layers = [c.layer(Norms.pre(rms), mixer, Plain(c.inner, c.activation("relu2")))] * c.count
    cap = c.optional("final_logit_softcapping", float)
    return c.model(layers, rms, embed_norm=rms, logit_softcap=cap, names=NANOCHAT)
