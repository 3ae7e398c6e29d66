"""StarCoder 2: LayerNorm, ungated gelu, biases everywhere, a sliding window on all layers."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, NormSpec, PlainFFNSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family

STARCODER = TensorNames(up="mlp.c_fc", down="mlp.c_proj")


@family("Starcoder2ForCausalLM")
def starcoder2(c: ModelConfig) -> ModelSpec:
    c.assume(num_key_value_heads=2)
    c.raw("layer_norm_epsilon", "activation_function")  # relics next to norm_epsilon and hidden_act
    c.raw("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    c.require("scale_attn_weights", True)
    c.require("mlp_type", "default")
    c.require("norm_type", "layer_norm")
    norm, bias = NormSpec(c.number("norm_epsilon", 1e-5), "layer", bias=True), c.flag("use_bias", True)
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width()), window=c.optional("sliding_window", int))
    ffn = PlainFFNSpec(c.inner, c.activation("gelu_tanh"), bias)
    return c.model([c.layer(LayerNorms.pre(norm), mixer, ffn)] * c.count, norm, tied=True, names=STARCODER)
