"""Mamba 1 and 2 and Falcon-Mamba: layers of one state space mixer each, no attention."""

from __future__ import annotations

import math

from ...errors import ConfigError
from ..spec.model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import LayerNorms, LayerSpec, Mixer, ModelSpec, NormSpec
from ..spec.recurrent_config import MOST_SEEN, heads_of, mamba2, time_limits
from ..spec.recurrent_spec import Mamba1Spec
from ..spec.tensor_names import TensorNames
from .family_registry import family

MAMBA = TensorNames(
    embedding="backbone.embeddings",
    norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    before_mixer="norm",
    mamba="mixer.",
)
# of training, of how states are computed elsewhere, and of the first versions, which is said by other keys too
WITHOUT_EFFECT = (
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_scale",
    "time_step_init_scheme",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "use_mambapy",
    "use_falcon_mambapy",
    "use_associative_scan",
    "chunk_size",
    "ssm_cfg",
    "fused_add_norm",
    "pad_vocab_size_multiple",
)
LONGEST = 2**20  # tokens of a sequence: nothing in these models limits them


def _inner(c: ModelConfig) -> int:
    inner = int(c.rate("expand", 2.0) * c.hidden)
    if not 1 <= inner <= MOST_WIDTH:
        raise ConfigError(f"{c.where}: expand={c.raw('expand')} of hidden_size={c.hidden} gives {inner} channels")
    for key in ("intermediate_size", "d_inner"):
        c.require(key, inner)
    return inner


def _rank(c: ModelConfig, key: str = "time_step_rank") -> int:
    return math.ceil(c.hidden / 16) if c.raw(key) in (None, "auto") else c.positive(key, most=MOST_WIDTH)


def _model(c: ModelConfig, mixer: Mixer, tied: bool = True) -> ModelSpec:
    """Of equal layers."""
    c.raw(*WITHOUT_EFFECT)
    c.require("rms_norm", True)
    norm = c.rms(1e-5, key="layer_norm_epsilon")
    layer = LayerSpec(LayerNorms(before_mixer=norm), mixer, None)
    return c.model([layer] * c.count, norm, tied=tied, names=MAMBA, max_position=LONGEST)


def _selective(c: ModelConfig, norm: NormSpec | None = None) -> Mamba1Spec:
    return Mamba1Spec(
        _inner(c),
        c.positive("state_size", 16, MOST_WIDTH),
        _rank(c),
        c.positive("conv_kernel", 4, MOST_SEEN),
        c.activation(),
        c.flag("use_bias"),
        c.flag("use_conv_bias", True),
        norm,
    )


@family("MambaForCausalLM")
def mamba(c: ModelConfig) -> ModelSpec:
    return _model(c, _selective(c))


@family("FalconMambaForCausalLM")
def falcon_mamba(c: ModelConfig) -> ModelSpec:
    """What gives time steps, B and C is normed, without weights."""
    return _model(c, _selective(c, NormSpec(c.epsilon("mixer_rms_eps", 1e-6), weight=False)))


@family("Mamba2ForCausalLM")
def mamba_2(c: ModelConfig) -> ModelSpec:
    c.raw("time_step_rank")
    c.require("norm_before_gate", False)
    heads, dim = heads_of(c, _inner(c), "num_heads", "head_dim", 128)
    bias, eps = c.flag("use_bias"), c.epsilon("layer_norm_epsilon", 1e-5)
    mixer = mamba2(
        c,
        heads,
        dim,
        c.positive("state_size", 128, MOST_WIDTH),
        c.positive("n_groups", 8, MOST_HEADS),
        c.positive("conv_kernel", 4, MOST_SEEN),
        eps,
        activation=c.activation(),
        bias=bias,
        out_bias=bias,
        conv_bias=c.flag("use_conv_bias", True),
        **time_limits(c),
    )
    return _model(c, mixer, tied=False)
