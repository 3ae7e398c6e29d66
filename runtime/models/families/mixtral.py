"""Mixtral, MiniMax M2, PhiMoE: experts under the names w1, w2 and w3."""

from __future__ import annotations

from dataclasses import replace

from ...layers.rope_parameters import RopeParameters
from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec, NormSpec, QkNormSpec, RouterSpec
from ..spec.tensor_names import ExpertTensorNames, TensorNames
from .family_registry import family

BLOCK = "block_sparse_moe."
MIXTRAL = ExpertTensorNames(
    router=f"{BLOCK}gate",
    correction=f"{BLOCK}e_score_correction_bias",
    gate=f"{BLOCK}experts.{{}}.w1",
    up=f"{BLOCK}experts.{{}}.w3",
    down=f"{BLOCK}experts.{{}}.w2",
    stacks=(),
)


@family("MixtralForCausalLM")
def mixtral(c: ModelConfig) -> ModelSpec:
    """A window, if there is one, holds for all layers."""
    c.raw("router_jitter_noise")  # of training
    rms = c.rms(1e-5)
    mixer = c.attention(kv_heads=8, rope=c.rope(c.width(), theta=1e6), window=c.optional("sliding_window", int))
    experts = c.experts(GatedFFNSpec(c.inner, c.activation()), RouterSpec(normalise=True))
    return c.model([c.layer(LayerNorms.pre(rms), mixer, experts)] * c.count, rms, names=TensorNames(experts=MIXTRAL))


@family("MiniMaxM2ForCausalLM")
def minimax_m2(c: ModelConfig) -> ModelSpec:
    """QK-norm over all heads; a part of each head turns, counted by `rotary_dim` in the published files."""
    _of_the_published(c)
    rms, dim = c.rms(), c.width(128)
    turned = c.optional("rotary_dim", int)
    rope = c.rope(dim, theta=5e6, share=1.0 if turned is None else turned / dim)
    mixer = c.attention(kv_heads=8, width=dim, norm=QkNormSpec(rms, "all"), rope=rope)
    experts = c.experts(GatedFFNSpec(c.inner, c.activation()), RouterSpec("sigmoid", correction=True, normalise=True))
    ignored = (
        rf"model\.layers\.(?!({'|'.join(map(str, range(c.count)))})\.)\d+\..*"  # of heads that predict several tokens
    )
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, experts)] * c.count,
        rms,
        names=TensorNames(experts=MIXTRAL, ignored=(ignored,)),
    )


def _of_the_published(c: ModelConfig) -> None:
    """Keys that say what the model is, and of its heads for several tokens."""
    c.raw(
        "router_jitter_noise",
        "mtp_transformer_layers",
        "num_mtp_modules",
        "use_mtp",
        "mlp_intermediate_size",
        "max_model_len",
    )
    c.require("attn_type_list", [1] * c.count)
    c.require("use_qk_norm", True)
    c.require("qk_norm_type", "per_layer")
    c.require("scoring_func", "sigmoid")
    c.require("use_routing_bias", True)
    c.require("shared_intermediate_size", 0)
    c.raw("shared_moe_mode")
    c.require("sliding_window")
    for kind in ("full_attention", "linear_attention", "mlp"):
        c.require(f"layernorm_{kind}_alpha", 1.0)
        c.require(f"layernorm_{kind}_beta", 1.0)


PHIMOE = TensorNames(experts=replace(MIXTRAL, router=f"{BLOCK}gate"))


@family("PhiMoEForCausalLM", "PhimoeForCausalLM")
def phimoe(c: ModelConfig) -> ModelSpec:
    """LayerNorm and biases; the router takes its experts one after the other."""
    c.raw("input_jitter_noise")  # of training
    c.require("num_experts_per_tok", 2)  # its router has two rounds, whatever else is written
    window = c.optional("sliding_window", int)
    norm, bias = NormSpec(c.epsilon("rms_norm_eps", 1e-5), "layer", bias=True), c.flag("attention_bias")
    mixer = c.attention(
        kv_heads=8, bias=bias, out_bias=bias, rope=_scaled(c), window=None if window == c.positions else window
    )
    experts = c.experts(
        GatedFFNSpec(c.inner, c.activation()), RouterSpec("mixer", jitter=c.number("router_jitter_noise", 0.01))
    )
    return c.model(
        [c.layer(LayerNorms.pre(norm), mixer, experts)] * c.count, norm, head_bias=c.flag("lm_head_bias"), names=PHIMOE
    )


def _scaled(c: ModelConfig) -> RopeParameters:
    """Longrope that says itself what cosines and sines are multiplied with, for short and for long sequences."""
    keys = ("short_mscale", "long_mscale")
    rope = c.rope(c.width(), theta=1e6, others=keys)
    if rope.kind != "longrope":
        return rope
    chosen = keys[(c.context or c.positions) > rope.original_context]
    return replace(rope, attention_factor=c.rope_fields().rate(chosen))
