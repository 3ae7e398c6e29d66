"""Granite 4: Mamba 2, some attention layers without positions, a shared network, maybe experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..spec.model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import Feedforward, GatedFFNSpec, LayerNorms, LayerSpec, ModelSpec, RouterSpec
from ..spec.recurrent_config import FULL, LINEAR, MOST_SEEN, counted, heads_of, layer_kinds, mamba2, time_limits
from ..spec.recurrent_spec import Mamba2Spec
from ..spec.tensor_names import MergedProjections
from .family_registry import family
from .granite import MIXED

NAMES = replace(MIXED, gate_up=MergedProjections("shared_mlp.input_linear"), down="shared_mlp.output_linear")


@family("GraniteMoeHybridForCausalLM")
def granite_hybrid(c: ModelConfig) -> ModelSpec:
    c.raw("mamba_chunk_size", "normalization_function", "init_method")
    key = "layer_types" if c.raw("layer_types") is not None else "layers_block_type"
    kinds, bias = counted(c, layer_kinds(c, [LINEAR] * c.count, key=key), key), c.flag("attention_bias")
    c.require("position_embedding_type", "rope", "nope")
    turns = c.raw("position_embedding_type") == "rope"
    rope = c.rope(c.width())
    attention = c.attention(
        scale=c.number("attention_multiplier", 1.0), bias=bias, out_bias=bias, rope=rope if turns else None
    )
    rms, recurrent, ffn, branch = c.rms(), _recurrent(c), _ffn(c), c.number("residual_multiplier", 1.0)
    layers = [LayerSpec(LayerNorms.pre(rms), attention if kind == FULL else recurrent, ffn, branch) for kind in kinds]
    scales: dict[str, Any] = {
        "embed_scale": c.number("embedding_multiplier", 1.0),
        "logit_scale": 1 / c.rate("logits_scaling", 1.0),
    }
    return c.model(layers, rms, names=NAMES, **scales)


def _recurrent(c: ModelConfig) -> Mamba2Spec:
    bias = c.flag("mamba_proj_bias")
    heads, dim = heads_of(c, c.positive("mamba_expand", 2) * c.hidden, "mamba_n_heads", "mamba_d_head", 128)
    return mamba2(
        c,
        heads,
        dim,
        c.positive("mamba_d_state", 256, MOST_WIDTH),
        c.positive("mamba_n_groups", 1, MOST_HEADS),
        c.positive("mamba_d_conv", 4, MOST_SEEN),
        c.rms().eps,
        activation=c.activation(),
        bias=bias,
        out_bias=bias,
        conv_bias=c.flag("mamba_conv_bias", True),
        **time_limits(c),
    )


def _ffn(c: ModelConfig) -> Feedforward:
    act, count = c.activation(), c.get("num_local_experts", int, 8)
    shared = GatedFFNSpec(c.positive("shared_intermediate_size", 1024, MOST_WIDTH), act)
    if count == 0:
        c.raw("intermediate_size", "num_experts_per_tok")
        return shared
    c.assume(num_local_experts=8, num_experts_per_tok=2)
    return c.experts(GatedFFNSpec(c.inner, act), RouterSpec(best_first=True), ("num_local_experts",), shared=shared)
