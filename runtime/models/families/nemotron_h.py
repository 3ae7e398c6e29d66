"""Nemotron-H and 3: layers of one part: Mamba 2, attention without positions, relu² networks or experts."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PlainFFNSpec,
    RouterSpec,
)
from ..spec.recurrent_config import FULL, LINEAR, MOST_SEEN, ignored, layer_kinds, mamba2
from ..spec.recurrent_spec import Mamba2Spec
from ..spec.tensor_names import ExpertTensorNames, TensorNames
from .family_registry import family

EXPERT = "mixer.experts.{}."
NEMOTRON_H = TensorNames(
    embedding="backbone.embeddings",
    norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    before_mixer="norm",
    before_ffn="norm",
    mamba="mixer.",
    q="mixer.q_proj",
    k="mixer.k_proj",
    v="mixer.v_proj",
    output="mixer.o_proj",
    up="mixer.up_proj",
    down="mixer.down_proj",
    experts=ExpertTensorNames(
        router="mixer.gate",
        correction="mixer.gate.e_score_correction_bias",
        up=f"{EXPERT}up_proj",
        down=f"{EXPERT}down_proj",
        narrow="mixer.fc1_latent_proj",
        widen="mixer.fc2_latent_proj",
        shared_up="mixer.shared_experts.up_proj",
        shared_down="mixer.shared_experts.down_proj",
        stacks=(),
    ),
    prefixes=(("model.", "backbone."),),
    ignored=ignored(),
)
PATTERN = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
# of training, of how states are computed elsewhere, of heads that predict several tokens, and what transformers does
# not read
WITHOUT_EFFECT = (
    "time_step_max",
    "time_step_floor",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "use_mamba_kernels",
    "chunk_size",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "mtp_layers_block_type",
    "mtp_hybrid_override_pattern",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "time_step_limit",
    "expand",
    "rope_theta",
    "partial_rotary_factor",
    "attention_bias",
    "mamba_proj_bias",
    "sliding_window",
)


@family("NemotronHForCausalLM")
def nemotron_h(c: ModelConfig) -> ModelSpec:
    c.raw(*WITHOUT_EFFECT)
    norm, kinds = c.rms(1e-5, key="layer_norm_epsilon"), _kinds(c)
    for other in ("rms_norm_eps", "norm_eps"):
        c.require(other, norm.eps)
    made = {kind: _layer(c, kind, norm) for kind in dict.fromkeys(kinds)}
    _unread_of(c, kinds)
    return c.model([made[kind] for kind in kinds], norm, names=NEMOTRON_H)


def _layer(c: ModelConfig, kind: str, norm: NormSpec) -> LayerSpec:
    if kind in (LINEAR, FULL):
        return LayerSpec(LayerNorms(before_mixer=norm), _recurrent(c) if kind == LINEAR else _attention(c), None)
    return LayerSpec(LayerNorms(before_ffn=norm), None, _plain(c) if kind == "mlp" else _mixture(c))


def _kinds(c: ModelConfig) -> list[str]:
    """`hybrid_override_pattern` says a letter for each layer; since transformers 5 `layers_block_type` names them."""
    pattern, allowed = c.optional("hybrid_override_pattern", str), tuple(PATTERN.values())
    key = "layer_types" if c.raw("layer_types") is not None else "layers_block_type"
    if pattern is not None and set(pattern) - set(PATTERN):
        raise ConfigError(
            f"{c.where}: hybrid_override_pattern={shown(pattern)} may have the letters {' '.join(PATTERN)} only"
        )
    kinds = layer_kinds(c, [PATTERN[letter] for letter in pattern or ""], allowed, key)
    c.assume(num_hidden_layers=len(kinds))
    c.require("num_hidden_layers", len(kinds))
    return kinds


def _recurrent(c: ModelConfig) -> Mamba2Spec:
    """No time step is below `time_step_min`, as in transformers; the limits that are written are not read there."""
    bias = c.flag("use_bias")
    return mamba2(
        c,
        c.positive("mamba_num_heads", 128, MOST_HEADS),
        c.positive("mamba_head_dim", 64, MOST_WIDTH),
        c.positive("ssm_state_size", 128, MOST_WIDTH),
        c.positive(("mamba_n_groups", "n_groups"), 8, MOST_HEADS),
        c.positive(("mamba_d_conv", "conv_kernel"), 4, MOST_SEEN),
        c.epsilon("layer_norm_epsilon", 1e-5),
        activation=c.activation("silu", "mamba_hidden_act"),
        bias=bias,
        out_bias=bias,
        conv_bias=c.flag(("mamba_conv_bias", "use_conv_bias"), True),
        least=c.number(("mamba_dt_min", "time_step_min"), 0.001),
    )


def _attention(c: ModelConfig) -> AttentionSpec:
    """The width of a head was called otherwise at first."""
    return c.attention(kv_heads=8, width=c.width(c.positive("attention_head_dim", 128, MOST_WIDTH)))


def _plain(c: ModelConfig) -> PlainFFNSpec:
    return PlainFFNSpec(c.inner, c.activation("relu2", "mlp_hidden_act"), c.flag("mlp_bias"))


def _mixture(c: ModelConfig) -> ExpertsSpec:
    c.require("n_shared_experts", 1)
    act, bias = c.activation("relu2", "mlp_hidden_act"), c.flag("mlp_bias")
    latent = None if c.raw("moe_latent_size") is None else c.positive("moe_latent_size", most=MOST_WIDTH)
    inner, shared = (
        c.positive(key, 7688, MOST_WIDTH) for key in ("moe_intermediate_size", "moe_shared_expert_intermediate_size")
    )
    router = RouterSpec(
        "sigmoid",
        correction=True,
        groups=c.positive("n_group", 1),
        kept_groups=c.positive("topk_group", 1),
        normalise=c.flag("norm_topk_prob", True),
        scale=c.number("routed_scaling_factor", 1.0),
    )
    return c.experts(
        PlainFFNSpec(inner, act),
        router,
        ("n_routed_experts", "num_local_experts"),
        shared=PlainFFNSpec(shared, act, bias),
        latent=latent,
        latent_bias=bias,
    )


def _unread_of(c: ModelConfig, kinds: list[str]) -> None:
    """Keys of kinds of layers that this model has none of."""
    unused = {
        LINEAR: (
            "mamba_num_heads",
            "mamba_head_dim",
            "ssm_state_size",
            "n_groups",
            "conv_kernel",
            "use_bias",
            "mamba_hidden_act",
            "use_conv_bias",
            "time_step_min",
        ),
        FULL: ("num_attention_heads", "num_key_value_heads", "head_dim", "attention_head_dim"),
        "mlp": ("intermediate_size",),
        "moe": (
            "moe_latent_size",
            "n_shared_experts",
            "moe_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "n_group",
            "topk_group",
            "norm_topk_prob",
            "routed_scaling_factor",
            "n_routed_experts",
            "num_local_experts",
            "num_experts_per_tok",
        ),
    }
    c.raw("mlp_hidden_act", "mlp_bias", *(key for kind, keys in unused.items() if kind not in kinds for key in keys))
