"""InternLM 1 and 2: Llama with one flag for all biases.

Version 2 has a fused QKV projection and its own tensor names.
"""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import JsonFields
from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

INTERNLM2 = TensorNames(
    embedding="model.tok_embeddings",
    head="output",
    before_mixer="attention_norm",
    before_ffn="ffn_norm",
    qkv=MergedProjections("attention.wqkv", "groups"),
    output="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def _internlm(c: ModelConfig, names: TensorNames, theta: float = 1e4) -> ModelSpec:
    bias, rms = c.flag("bias", True), c.rms()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=theta))
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation()))] * c.count, rms, names=names
    )


@family("InternLMForCausalLM")
def internlm(c: ModelConfig) -> ModelSpec:
    """`rotary` holds the base; its type "dynamic" scales nothing below max_position_embeddings."""
    values = c.raw("rotary") or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{c.where}: rotary must be an object, not {values!r}")
    rotary = JsonFields(values, f"{c.where}: rotary")
    rotary.require("type", "origin", "dynamic")
    rotary.raw("scaling_factor")
    theta = rotary.number("base", 1e4)
    if unread := rotary.unread():
        raise ConfigError(f"{rotary.where}: key {unread[0]!r} ({values[unread[0]]!r}) is not understood")
    return _internlm(c, TensorNames(), theta)


@family("InternLM2ForCausalLM")
def internlm2(c: ModelConfig) -> ModelSpec:
    return _internlm(c, INTERNLM2)
