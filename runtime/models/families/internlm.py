"""InternLM 1 and 2: Llama with one flag for all biases; version 2 has a fused QKV projection and its own tensor names."""

from __future__ import annotations

from ...errors import ConfigError
from ..config import Config
from ..fields import Fields
from ..names import Merged, Names
from ..spec import Gated, Model, Norms
from .registry import family

INTERNLM2 = Names(
    embedding="model.tok_embeddings", head="output", before_mixer="attention_norm", before_ffn="ffn_norm",
    qkv=Merged("attention.wqkv", "groups"), output="attention.wo", gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2",
)  # fmt: skip


def _internlm(c: Config, names: Names, theta: float = 1e4) -> Model:
    bias, rms = c.flag("bias", True), c.rms()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=theta))
    return c.model([c.layer(Norms.pre(rms), mixer, Gated(c.inner, c.activation()))] * c.count, rms, names=names)


@family("InternLMForCausalLM")
def internlm(c: Config) -> Model:
    """`rotary` holds the base; its type "dynamic" scales nothing below max_position_embeddings."""
    values = c.raw("rotary") or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{c.where}: rotary must be an object, not {values!r}")
    rotary = Fields(values, f"{c.where}: rotary")
    rotary.require("type", "origin", "dynamic")
    rotary.raw("scaling_factor")
    theta = rotary.number("base", 1e4)
    if unread := rotary.unread():
        raise ConfigError(f"{rotary.where}: key {unread[0]!r} ({values[unread[0]]!r}) is not understood")
    return _internlm(c, Names(), theta)


@family("InternLM2ForCausalLM")
def internlm2(c: Config) -> Model:
    return _internlm(c, INTERNLM2)
