"""ERNIE 4.5 dense: interleaved RoPE, one flag for all biases."""

from __future__ import annotations

from ..config import Config
from ..spec import Gated, Model, Norms
from .registry import family


@family("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
def ernie(c: Config) -> Model:
    c.assume(num_key_value_heads=2, head_dim=128)
    rms, bias = c.rms(1e-5), c.flag("use_bias")
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=5e5, interleaved=True))
    return c.model([c.layer(Norms.pre(rms), mixer, Gated(c.inner, c.activation(), bias))] * c.count, rms, tied=True)
