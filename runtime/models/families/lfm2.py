"""LFM2 of Liquid AI: short convolutions with a layer of attention here and there."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import Feedforward, GatedFFNSpec, LayerNorms, ModelSpec, QkNormSpec, RouterSpec, ShortConvSpec
from ..spec.tensor_names import ExpertTensorNames, TensorNames
from .family_registry import family

FFN = "feed_forward."
LFM2 = TensorNames(
    norm="model.embedding_norm",
    before_mixer="operator_norm",
    before_ffn="ffn_norm",
    output="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate=f"{FFN}w1",
    up=f"{FFN}w3",
    down=f"{FFN}w2",
    experts=ExpertTensorNames(
        router=f"{FFN}gate",
        correction=f"{FFN}expert_bias",
        gate=f"{FFN}experts.{{}}.w1",
        up=f"{FFN}experts.{{}}.w3",
        down=f"{FFN}experts.{{}}.w2",
        stacks=(),
    ),
)


@family("Lfm2ForCausalLM")
def lfm2(c: ModelConfig) -> ModelSpec:
    c.require("conv_dim", c.hidden)
    c.require("conv_dim_out", c.hidden)
    c.require("block_dim", c.hidden)
    c.require("block_use_swiglu", True)
    c.require("use_pos_enc", True)
    c.raw(
        "block_norm_eps",
        "theta",
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
    )
    return _model(c, [GatedFFNSpec(_inner(c))] * c.count)


@family("Lfm2MoeForCausalLM")
def lfm2_moe(c: ModelConfig) -> ModelSpec:
    """The first layers have one network, the others experts."""
    dense = c.get("num_dense_layers", int, 2)
    router = RouterSpec(
        "sigmoid",
        correction=c.flag("use_expert_bias", True),
        normalise=c.flag("norm_topk_prob", True),
        floor=1e-6,
        scale=c.number("routed_scaling_factor", 1.0),
    )
    experts = c.experts(GatedFFNSpec(c.positive("moe_intermediate_size", 1792, MOST_WIDTH)), router)
    return _model(c, [GatedFFNSpec(c.inner) if index < dense else experts for index in range(c.count)])


def _model(c: ModelConfig, networks: list[Feedforward]) -> ModelSpec:
    if c.raw("tie_embedding") is not None:  # what the published files say
        c.values = dict(c.values) | {"tie_word_embeddings": c.flag("tie_embedding")}
    rms = c.rms(1e-5, key="norm_eps")
    attention = c.attention(kv_heads=8, norm=QkNormSpec(rms), rope=c.rope(c.width(), theta=1e6))
    conv = ShortConvSpec(c.hidden, c.positive("conv_L_cache", 3), c.flag("conv_bias"))
    mixers = [attention if kind == "full_attention" else conv for kind in _kinds(c)]
    layers = [c.layer(LayerNorms.pre(rms), mixer, ffn) for mixer, ffn in zip(mixers, networks, strict=True)]
    return c.model(layers, rms, tied=True, names=LFM2)


def _kinds(c: ModelConfig) -> list[str]:
    """Of each layer "full_attention" or "conv": by `layer_types`, before which `full_attn_idxs` said it."""
    listed, kinds = c.raw("full_attn_idxs"), c.raw("layer_types")
    if listed is not None and not (isinstance(listed, list) and all(index in range(c.count) for index in listed)):
        raise ConfigError(f"{c.where}: full_attn_idxs={shown(listed)} must list layers from 0 to {c.count - 1}")
    if kinds is None:
        kinds = ["full_attention" if listed is None or index in listed else "conv" for index in range(c.count)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != c.count
        or any(kind not in ("full_attention", "conv") for kind in kinds)
    ):
        raise ConfigError(f"{c.where}: layer_types={shown(kinds)} must name full_attention or conv {c.count} times")
    return kinds


def _inner(c: ModelConfig) -> int:
    """The published number is that of a network without a gate, unless `block_auto_adjust_ff_dim` is off."""
    inner = c.positive("block_ff_dim", most=MOST_WIDTH) if c.raw("block_ff_dim") is not None else c.inner
    whole, factor = c.positive("block_multiple_of", 256, MOST_WIDTH), c.optional("block_ffn_dim_multiplier", float)
    if not c.flag("block_auto_adjust_ff_dim", True):
        return inner
    inner = 2 * inner // 3
    return inner if factor is None else whole * -(-int(factor * inner) // whole)
