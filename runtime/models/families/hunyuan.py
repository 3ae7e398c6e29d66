"""Hunyuan: Llama with QK-norm after RoPE, dense or with experts; version 3 norms before RoPE and routes by sigmoids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, GatedFFNSpec, LayerNorms, ModelSpec, NormSpec, QkNormSpec, RouterSpec
from ..spec.tensor_names import ExpertTensorNames, TensorNames
from .family_registry import family

HUNYUAN = TensorNames(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")


@family("HunYuanDenseV1ForCausalLM")
def hunyuan_dense(c: ModelConfig) -> ModelSpec:
    _of_the_published(c)
    c.raw("moe_topk")
    c.require("num_experts", 1)
    rms = c.rms(1e-5)
    return c.model([c.layer(LayerNorms.pre(rms), _mixer(c, rms))] * c.count, rms, names=HUNYUAN)


MIXED = replace(
    HUNYUAN,
    experts=ExpertTensorNames(
        router="mlp.gate.wg",
        shared_gate="mlp.shared_mlp.gate_proj",
        shared_up="mlp.shared_mlp.up_proj",
        shared_down="mlp.shared_mlp.down_proj",
    ),
)


@family("HunYuanMoEV1ForCausalLM")
def hunyuan_moe(c: ModelConfig) -> ModelSpec:
    _of_the_published(c)
    c.values = dict(c.values) | {
        key: _of_all(c, key) for key in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert")
    }
    c.require("moe_intermediate_size", c.inner)
    c.require("num_shared_expert", 1)
    c.require("moe_layer_num_skipped", 0)
    rms, expert = c.rms(1e-5), GatedFFNSpec(c.inner, c.activation())
    experts = c.experts(expert, RouterSpec(normalise=True), ("num_experts",), "moe_topk", shared=expert)
    return c.model([c.layer(LayerNorms.pre(rms), _mixer(c, rms), experts)] * c.count, rms, names=MIXED)


THIRD = TensorNames(experts=replace(MIXED.experts, router="mlp.router.gate", correction="mlp.expert_bias"))


@family("HYV3ForCausalLM")
def hunyuan3(c: ModelConfig) -> ModelSpec:
    c.raw("enable_moe_fp32_combine")  # sums are always in float32
    rms, bias, act = c.rms(1e-5), c.flag("attention_bias"), c.activation()
    mixer = c.attention(
        kv_heads=8,
        width=128,
        norm=QkNormSpec(rms),
        bias=bias,
        out_bias=bias,
        rope=c.rope(c.width(128), theta=11158840.0),
    )
    inner = c.positive("moe_intermediate_size", most=MOST_WIDTH)
    router = RouterSpec(
        "sigmoid", correction=True, normalise=True, floor=1e-20, scale=c.number("router_scaling_factor", 2.826)
    )
    shared = GatedFFNSpec(inner * c.positive("num_shared_experts", 1, most=MOST_LAYERS), act, c.flag("mlp_bias"))
    experts, dense = (
        c.experts(GatedFFNSpec(inner, act), router, shared=shared),
        GatedFFNSpec(c.inner, act, c.flag("mlp_bias")),
    )
    layers = [c.layer(LayerNorms.pre(rms), mixer, experts if kind == "sparse" else dense) for kind in _kinds(c)]
    return c.model(layers, rms, names=THIRD)


def _kinds(c: ModelConfig) -> list[str]:
    written = c.raw("mlp_layer_types")
    kinds = ["dense", *["sparse"] * (c.count - 1)] if written is None else written
    if not isinstance(kinds, list) or len(kinds) != c.count or any(kind not in ("dense", "sparse") for kind in kinds):
        raise ConfigError(f"{c.where}: mlp_layer_types={shown(kinds)} must name dense or sparse {c.count} times")
    return kinds


def _of_all(c: ModelConfig, key: str) -> Any:
    """A number that may be written for each layer."""
    value = c.raw(key)
    if not isinstance(value, list):
        return value
    if len(value) != c.count or any(type(each) is not int or each != value[0] for each in value):
        raise ConfigError(f"{c.where}: {key}={shown(value)} must be the same for all {c.count} layers")
    return value[0]


def _mixer(c: ModelConfig, rms: NormSpec) -> AttentionSpec:
    bias = c.flag("attention_bias")
    return c.attention(norm=QkNormSpec(rms, after=True), bias=bias, out_bias=bias, rope=c.rope(c.width()))


def _of_the_published(c: ModelConfig) -> None:
    """Keys that the published files have and that other models of the house use."""
    c.raw(
        "org_vocab_size",
        "cla_share_factor",
        "pad_id",
        "num_shared_expert",
        "routed_scaling_factor",
        "enable_lm_head_fp32",
    )
    c.raw(
        "dense_list",
        "class_num",
        "pool_type",
        "mask_init_id",
        "im_start_id",
        "im_end_id",
        "im_newline_id",
        "text_start_id",
        "text_end_id",
    )  # of classifiers and pictures
    c.require("attention_head_dim", c.width())
    c.require("norm_type", "rms", "hf_rms", "fused")
    c.require("use_qk_norm", True)
    c.require("use_rotary_pos_emb", True)
    for key in ("mlp_bias", "use_cla", "position_embedding_xdrope", "use_mla", "use_mixed_mlp_moe"):
        c.require(key, False)
