"""Helium: Llama with interleaved RoPE."""

from __future__ import annotations

from ..config import Config
from ..spec import Gated, Model, Norms
from .registry import family


@family("HeliumForCausalLM")
def helium(c: Config) -> Model:
    c.assume(head_dim=128)
    rms, rope = c.rms(1e-8), c.rope(c.width(), theta=1e5, interleaved=True)
    mixer = c.attention(bias=c.flag("attention_bias"), rope=rope)
    return c.model([c.layer(Norms.pre(rms), mixer, Gated(c.inner, c.activation(), c.flag("mlp_bias")))] * c.count, rms)
