"""ERNIE 4.5: interleaved RoPE, one flag for all biases; experts by a softmax with corrections."""

from __future__ import annotations

from dataclasses import replace

from ..spec.model_config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import ExpertsSpec, GatedFFNSpec, LayerNorms, ModelSpec, RouterSpec
from ..spec.tensor_names import ExpertTensorNames, TensorNames
from .family_registry import family


@family("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
def ernie(c: ModelConfig) -> ModelSpec:
    c.assume(num_key_value_heads=2, head_dim=128)
    rms, bias = c.rms(1e-5), c.flag("use_bias")
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=5e5, interleaved=True))
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner, c.activation(), bias))] * c.count, rms, tied=True
    )


ERNIE = TensorNames(
    experts=ExpertTensorNames(correction="mlp.moe_statics.e_score_correction_bias", correction_row=True)
)


@family("Ernie4_5_MoeForCausalLM")
def ernie_moe(c: ModelConfig) -> ModelSpec:
    c.raw("moe_capacity")  # of training
    c.require("moe_gate", "topk")
    c.require("moe_use_aux_free", True)
    rms, bias, dense, experts = (
        c.rms(1e-5),
        c.flag("use_bias"),
        GatedFFNSpec(c.inner, c.activation(), c.flag("use_bias")),
        _experts(c),
    )
    mixer = c.attention(kv_heads=4, bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=5e5, interleaved=True))
    layers = [c.layer(LayerNorms.pre(rms), mixer, experts if sparse else dense) for sparse in _sparse(c)]
    return c.model(layers, rms, tied=True, head_bias=bias, names=ERNIE)


def _experts(c: ModelConfig) -> ExpertsSpec:
    inner = c.positive("moe_intermediate_size", most=MOST_WIDTH)
    expert, shared = GatedFFNSpec(inner, c.activation()), c.get("moe_num_shared_experts", int, 2)
    router = RouterSpec(correction=True, normalise=True, floor=c.number("moe_norm_min", 1e-12))
    beside = replace(expert, inner=inner * min(shared, MOST_WIDTH), bias=c.flag("use_bias")) if shared > 0 else None
    return c.experts(expert, router, ("moe_num_experts", "num_experts"), "moe_k", shared=beside)


def _sparse(c: ModelConfig) -> list[bool]:
    """Of each layer whether it has experts."""
    first, last, each = (
        c.get("moe_layer_start_index", int, 1),
        c.get("moe_layer_end_index", int, -1),
        c.positive("moe_layer_interval", 1, most=MOST_LAYERS),
    )
    last = c.count - 1 if last == -1 else last
    return [(index + 1) % each == 0 and first <= index <= last for index in range(c.count)]
