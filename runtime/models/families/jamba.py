"""Jamba: Mamba 1 with norms, one attention layer in eight without positions; every other layer has experts."""

from __future__ import annotations

import math

from ...errors import ConfigError
from ..spec.model_config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import Feedforward, GatedFFNSpec, LayerNorms, LayerSpec, Mixer, ModelSpec, RouterSpec
from ..spec.recurrent_config import MOST_SEEN
from ..spec.recurrent_spec import Mamba1Spec
from ..spec.tensor_names import ExpertTensorNames, TensorNames, stacks
from .family_registry import family

EXPERT = "feed_forward.experts.{}."
JAMBA = TensorNames(
    norm="model.final_layernorm",
    before_ffn="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    experts=ExpertTensorNames(
        router="feed_forward.router",
        gate=f"{EXPERT}gate_proj",
        up=f"{EXPERT}up_proj",
        down=f"{EXPERT}down_proj",
        stacks=stacks("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", EXPERT),
    ),
)


@family("JambaForCausalLM")
def jamba(c: ModelConfig) -> ModelSpec:
    """Which layers attend and which have experts is said by a period and an offset each."""
    c.raw(
        "use_mamba_kernels",
        "use_mambapy",
        "use_associative_scan",
        "num_logits_to_keep",
        "calc_logits_for_entire_prompt",
    )
    c.require("sliding_window")
    rms, recurrent, attention = c.rms(), _recurrent(c), c.attention(kv_heads=8)
    mixers: list[Mixer] = [attention if attends else recurrent for attends in _periodic(c, "attn_layer", 8, 4)]
    layers = [LayerSpec(LayerNorms.pre(rms), mixer, ffn) for mixer, ffn in zip(mixers, _ffns(c), strict=True)]
    return c.model(layers, rms, names=JAMBA)


def _recurrent(c: ModelConfig) -> Mamba1Spec:
    rank = (
        math.ceil(c.hidden / 16)
        if c.raw("mamba_dt_rank") in (None, "auto")
        else c.positive("mamba_dt_rank", most=MOST_WIDTH)
    )
    return Mamba1Spec(
        c.positive("mamba_expand", 2) * c.hidden,
        c.positive("mamba_d_state", 16, MOST_WIDTH),
        rank,
        c.positive("mamba_d_conv", 4, MOST_SEEN),
        c.activation(),
        c.flag("mamba_proj_bias"),
        c.flag("mamba_conv_bias", True),
        c.rms(),
    )


def _ffns(c: ModelConfig) -> list[Feedforward]:
    dense, sparse = GatedFFNSpec(c.inner, c.activation()), _periodic(c, "expert_layer", 2, 1)
    c.assume(num_experts=16, num_experts_per_tok=2)
    if c.positive("num_experts") == 1:
        c.raw("num_experts_per_tok")
        return [dense] * c.count
    mixture = c.experts(GatedFFNSpec(c.inner, c.activation()), RouterSpec())
    return [mixture if each else dense for each in sparse]


def _periodic(c: ModelConfig, name: str, period: int, offset: int) -> list[bool]:
    each, first = c.positive(f"{name}_period", period, most=MOST_LAYERS), c.get(f"{name}_offset", int, offset)
    if not 0 <= first < each:
        raise ConfigError(f"{c.where}: {name}_offset={first} must be at least 0 and below {name}_period={each}")
    return [index % each == first for index in range(c.count)]
