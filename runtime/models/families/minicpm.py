"""MiniCPM 1, 2 and 4: Llama with multipliers of embeddings, branches and logits."""

from __future__ import annotations

from ..config import Config
from ..spec import Gated, Model, Norms
from .registry import family


@family("MiniCPMForCausalLM")
def minicpm(c: Config) -> Model:
    bias, rms = c.flag("attention_bias"), c.rms()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width()))
    branch = c.number("scale_depth", 1.0) / c.count**0.5
    layer = c.layer(Norms.pre(rms), mixer, Gated(c.inner, c.activation()), branch=branch)
    logits = c.number("dim_model_base", 1.0) / c.hidden
    return c.model([layer] * c.count, rms, tied=True, embed_scale=c.number("scale_emb", 1.0), logit_scale=logits)
