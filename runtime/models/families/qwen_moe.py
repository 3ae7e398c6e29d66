"""Qwen 2 and 3 with experts, and the text model of a vision wrapper; Qwen 2 has a gated shared expert."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, ExpertsSpec, GatedFFNSpec, LayerNorms, ModelSpec, QkNormSpec, RouterSpec
from ..spec.tensor_names import ExpertTensorNames, MergedProjections, StackedExpertTensor, TensorNames
from .family_registry import family

QWEN2 = TensorNames(
    experts=ExpertTensorNames(
        shared_gate="mlp.shared_expert.gate_proj",
        shared_up="mlp.shared_expert.up_proj",
        shared_down="mlp.shared_expert.down_proj",
    )
)
QWEN3_VL = TensorNames(
    experts=ExpertTensorNames(
        gate_up=MergedProjections("mlp.experts.{}.gate_up_proj"),
        transposed=True,
        stacks=tuple(
            StackedExpertTensor(f"mlp.experts.{name}", (f"mlp.experts.{{}}.{name}.weight",))
            for name in ("gate_up_proj", "down_proj")
        ),
    )
)


def sparse(c: ModelConfig) -> list[bool]:
    """Of each layer whether it has experts: each `decoder_sparse_step`-th, without those of `mlp_only_layers`."""
    step, dense = c.positive("decoder_sparse_step", 1, most=MOST_LAYERS), c.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(index) is not int for index in dense):
        raise ConfigError(f"{c.where}: mlp_only_layers={shown(dense)} must list numbers of layers")
    return [index not in dense and (index + 1) % step == 0 for index in range(c.count)]


def expert(c: ModelConfig, key: str = "moe_intermediate_size") -> GatedFFNSpec:
    return GatedFFNSpec(c.positive(key, most=MOST_WIDTH), c.activation())


def _model(c: ModelConfig, mixers: list[AttentionSpec], experts: ExpertsSpec, names: TensorNames) -> ModelSpec:
    rms, dense = c.rms(), GatedFFNSpec(c.inner, c.activation())
    ffns = [experts if each else dense for each in sparse(c)]
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, ffn) for mixer, ffn in zip(mixers, ffns, strict=True)], rms, names=names
    )


def _router(c: ModelConfig) -> RouterSpec:
    return RouterSpec(normalise=c.flag("norm_topk_prob"))


@family("Qwen3MoeForCausalLM")
def qwen3_moe(c: ModelConfig) -> ModelSpec:
    """A window, if one is wanted, holds for all layers."""
    c.raw("max_window_layers", "sliding_window")
    window = c.optional("sliding_window", int) if c.flag("use_sliding_window") else None
    bias = c.flag("attention_bias")
    mixer = c.attention(norm=QkNormSpec(c.rms()), bias=bias, out_bias=bias, rope=c.rope(c.width()), window=window)
    return _model(c, [mixer] * c.count, c.experts(expert(c), _router(c)), TensorNames())


@family("Qwen3VLMoeForConditionalGeneration")
def qwen3_vl_moe(c: ModelConfig) -> ModelSpec:
    """The experts of a layer are stored in two tensors, as [in, out]; their weights are always normalised."""
    bias = c.flag("attention_bias")
    mixer = c.attention(norm=QkNormSpec(c.rms()), bias=bias, out_bias=bias, rope=c.rope(c.width(), theta=5e5))
    return _model(c, [mixer] * c.count, c.experts(expert(c), RouterSpec(normalise=True)), QWEN3_VL)


@family("Qwen2MoeForCausalLM")
def qwen2_moe(c: ModelConfig) -> ModelSpec:
    rope, bias = c.rope(c.width()), c.flag("qkv_bias", True)
    mixers = [c.attention(bias=bias, rope=rope, window=window) for window in _windows(c)]
    shared = expert(c, "shared_expert_intermediate_size")
    return _model(c, mixers, c.experts(expert(c), _router(c), shared=shared, switched=True), QWEN2)


def _windows(c: ModelConfig) -> tuple[int | None, ...]:
    """Every other one of the first `max_window_layers`, where `layer_types` says nothing else."""
    first, wanted = c.get("max_window_layers", int, 28), c.flag("use_sliding_window")
    default = [
        "sliding_attention" if wanted and index % 2 == 0 and index < first else "full_attention"
        for index in range(c.count)
    ]
    if wanted:
        return c.windows(default)
    c.raw("sliding_window")
    if "sliding_attention" in (kinds := c.kinds(default)):
        raise ConfigError(
            f"{c.where}: layer_types={shown(kinds)} names windows, use_sliding_window=False says that there are none"
        )
    return (None,) * c.count
