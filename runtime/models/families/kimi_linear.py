"""Kimi Linear: KDA in most layers, latent attention without rotation in the others, experts after a dense layer."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..spec.json_fields import JsonFields, shown
from ..spec.latent_attention_config import latent
from ..spec.model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import ExpertsSpec, Feedforward, GatedFFNSpec, LayerNorms, Mixer, ModelSpec, RouterSpec
from ..spec.recurrent_config import FULL, LINEAR, MOST_SEEN, counted, layer_kinds
from ..spec.recurrent_spec import DeltaNetSpec
from ..spec.tensor_names import DeltaNetTensorNames, TensorNames
from .family_registry import family
from .glm_moe import dense_or_sparse, mtp_tensors
from .mixtral import BLOCK, MIXTRAL

EXPERTS = replace(
    MIXTRAL,
    correction=f"{BLOCK}gate.e_score_correction_bias",
    shared_gate=f"{BLOCK}shared_experts.gate_proj",
    shared_up=f"{BLOCK}shared_experts.up_proj",
    shared_down=f"{BLOCK}shared_experts.down_proj",
)
KDA = DeltaNetTensorNames(
    "self_attn.",
    (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("g_a_proj", "z")),
    (("b_proj", "b"), ("f_a_proj", "a")),
    convolution=("q_conv1d", "k_conv1d", "v_conv1d"),
    norm="o_norm",
    output="o_proj",
)


@family("KimiLinearForCausalLM")
def kimi_linear(c: ModelConfig) -> ModelSpec:
    c.require("mla_use_nope", True)
    c.require("moe_layer_freq", 1)
    c.raw(
        "rope_theta", "rope_scaling", "rope_parameters", "use_grouped_topk"
    )  # nothing turns; one group is all of them
    c.assume(num_nextn_predict_layers=0)
    rms, own = c.rms(1e-5), JsonFields(c.raw("linear_attn_config") or {}, f"{c.where}: linear_attn_config")
    mixers: dict[str, Mixer] = {
        FULL: latent(c, interleaved=False, turns=False, query_rank=None),
        LINEAR: _kda(c, own, rms.eps),
    }
    kinds, feeds = _kinds(c, own), dense_or_sparse(c)
    ffns: dict[str, Feedforward] = {"dense": GatedFFNSpec(c.inner, c.activation()), "sparse": _experts(c)}
    layers = [c.layer(LayerNorms.pre(rms), mixers[kind], ffns[feed]) for kind, feed in zip(kinds, feeds, strict=True)]
    dense = tuple(
        (f"model.layers.{i}.{BLOCK}", f"model.layers.{i}.mlp.") for i, feed in enumerate(feeds) if feed == "dense"
    )  # as transformers saves it
    names = TensorNames(experts=EXPERTS, delta=KDA, prefixes=dense, ignored=mtp_tensors(c))
    return c.model(
        layers, rms, names=names, max_position=c.positive(("max_position_embeddings", "model_max_length"), 2**20)
    )


def _kda(c: ModelConfig, own: JsonFields, eps: float) -> DeltaNetSpec:
    """The published files have an object for it, transformers separate keys."""
    heads = own.positive("num_heads", c.positive("linear_num_heads", 32, MOST_HEADS), MOST_HEADS)
    dim = own.positive("head_dim", c.positive("linear_head_dim", 128, MOST_WIDTH), MOST_WIDTH)
    seen = own.positive("short_conv_kernel_size", c.positive("linear_conv_kernel_dim", 4, MOST_SEEN), MOST_SEEN)
    return DeltaNetSpec(heads, heads, dim, dim, seen, eps, c.activation(), rank=dim, gate="sigmoid")


def _kinds(c: ModelConfig, own: JsonFields) -> list[str]:
    """Of each layer what it mixes by; the published files list their numbers, from 1 on."""
    full, linear = own.raw("full_attn_layers"), own.raw("kda_layers")
    if unread := own.unread():
        raise ConfigError(f"{own.where}: key {unread[0]!r} ({shown(own.values[unread[0]])}) is not understood")
    if full is None or linear is None:
        return counted(c, layer_kinds(c, [FULL if index and not index % 4 else LINEAR for index in range(c.count)]))
    if (
        not isinstance(full, list)
        or not isinstance(linear, list)
        or sorted([*full, *linear], key=repr) != sorted(range(1, c.count + 1), key=repr)
    ):
        raise ConfigError(
            f"{own.where}: full_attn_layers={shown(full)} and kda_layers={shown(linear)} must have each of {c.count} "
            "layers once"
        )
    return counted(c, layer_kinds(c, [FULL if index + 1 in full else LINEAR for index in range(c.count)]))


def _experts(c: ModelConfig) -> ExpertsSpec:
    c.require("moe_router_activation_func", "sigmoid")
    inner = c.positive("moe_intermediate_size", 1024, most=MOST_WIDTH)
    router = RouterSpec(
        "sigmoid",
        correction=True,
        groups=c.positive(("num_expert_group", "n_group"), 1, most=MOST_WIDTH),
        kept_groups=c.positive("topk_group", 1, most=MOST_WIDTH),
        normalise=c.flag_unless_null(c.named(("moe_renormalize", "norm_topk_prob")), True),
        floor=1e-20,
        scale=c.number("routed_scaling_factor", 2.446),
    )
    shared = GatedFFNSpec(
        inner * c.positive(("num_shared_experts", "n_shared_experts"), 1, most=MOST_WIDTH), c.activation()
    )
    top_k = c.named(("num_experts_per_token", "num_experts_per_tok"))
    c.assume(**{top_k: 8})
    return c.experts(
        GatedFFNSpec(inner, c.activation()), router, ("num_experts", "num_local_experts"), top_k, shared=shared
    )
