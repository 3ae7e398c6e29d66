"""DeepSeek V2, V2-Lite and V3 (R1, V3.1), Kimi K2: latent attention, mixtures with shared experts."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.latent_attention_config import latent, unused
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import ExpertsSpec, Feedforward, GatedFFNSpec, LayerNorms, ModelSpec, RouterSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family
from .glm_moe import first_sparse, mtp_tensors, routed


def _model(c: ModelConfig, dense: GatedFFNSpec, experts: ExpertsSpec, first: int) -> ModelSpec:
    unused(c)
    c.require("moe_layer_freq", 1)
    rms, mixer = c.rms(), latent(c, interleaved=c.flag_unless_null("rope_interleave", True))
    ffns: list[Feedforward] = [dense if index < first else experts for index in range(c.count)]
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, ffn) for ffn in ffns], rms, names=TensorNames(ignored=mtp_tensors(c))
    )


@family("DeepseekV2ForCausalLM")
def deepseek_v2(c: ModelConfig) -> ModelSpec:
    c.require("rope_interleave", True)
    c.require("scoring_func", "softmax")
    c.require("norm_topk_prob", False)
    c.assume(first_k_dense_replace=0, n_shared_experts=2, num_nextn_predict_layers=0)
    bias, inner = c.flag("mlp_bias"), c.positive("moe_intermediate_size", 1407, most=MOST_WIDTH)
    shared = GatedFFNSpec(inner * c.positive("n_shared_experts", most=MOST_WIDTH), c.activation(), bias)
    experts = c.experts(
        GatedFFNSpec(inner, c.activation()),
        _router_v2(c),
        ("n_routed_experts", "num_experts", "num_local_experts"),
        shared=shared,
    )
    return _model(c, GatedFFNSpec(c.inner, c.activation(), bias), experts, first_sparse(c))


def _router_v2(c: ModelConfig) -> RouterSpec:
    method, scale = c.get("topk_method", str, "greedy"), c.number("routed_scaling_factor", 1.0)
    groups, kept = c.optional("n_group", int), c.optional("topk_group", int)
    if method == "greedy":
        return RouterSpec(scale=scale)
    if method != "group_limited_greedy":
        raise ConfigError(
            f"{c.where}: topk_method={shown(method)} is not supported; supported: greedy, group_limited_greedy"
        )
    if not groups or not kept or min(groups, kept) < 1:
        raise ConfigError(
            f"{c.where}: topk_method={method!r} needs n_group and topk_group of at least 1, not {shown(groups)} and "
            f"{shown(kept)}"
        )
    return RouterSpec(groups=groups, kept_groups=kept, group_score="largest", outside=0.0, scale=scale)


@family("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration")
def deepseek_v3(c: ModelConfig) -> ModelSpec:
    c.require("scoring_func", "sigmoid")
    c.require("topk_method", "noaux_tc")
    c.assume(
        first_k_dense_replace=3,
        n_group=8,
        topk_group=4,
        routed_scaling_factor=2.5,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
    )
    return _model(c, GatedFFNSpec(c.inner, c.activation()), routed(c), first_sparse(c))
