"""Granite and its relatives, some with experts: multipliers of embeddings, scores, branches and logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ...layers.rope_parameters import RopeParameters
from ..spec.json_fields import LARGEST_FLOAT, shown
from ..spec.model_config import MOST_WIDTH, ModelConfig, every
from ..spec.model_spec import AttentionSpec, Feedforward, GatedFFNSpec, LayerNorms, ModelSpec, RouterSpec
from ..spec.tensor_names import ExpertTensorNames, MergedProjections, TensorNames, stacks
from .family_registry import family

HYPERCLOVAX = TensorNames(after_mixer="post_norm1", after_ffn="post_norm2")


def _mixer(c: ModelConfig, scale: float | None = 1.0, **options: Any) -> AttentionSpec:
    bias = c.flag("attention_bias")
    return c.attention(scale=c.optional("attention_multiplier", float) or scale, bias=bias, out_bias=bias, **options)


def _model(
    c: ModelConfig,
    norms: LayerNorms,
    mixers: list[AttentionSpec],
    logit_scale: float,
    ffn: Feedforward | None = None,
    **options: Any,
) -> ModelSpec:
    ffn, branch = ffn or GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias")), c.number("residual_multiplier", 1.0)
    layers = [c.layer(norms, mixer, ffn, branch=branch) for mixer in mixers]
    return c.model(
        layers,
        norms.before_mixer,
        embed_scale=c.number("embedding_multiplier", 1.0),
        logit_scale=logit_scale,
        **options,
    )


@family("GraniteForCausalLM")
def granite(c: ModelConfig) -> ModelSpec:
    mixer = _mixer(c, rope=c.rope(c.width()))
    return _model(c, LayerNorms.pre(c.rms()), [mixer] * c.count, 1 / c.number("logits_scaling", 1.0))


BLOCK = "block_sparse_moe."
MIXED = TensorNames(
    experts=ExpertTensorNames(
        router=f"{BLOCK}router.layer",
        gate=f"{BLOCK}experts.{{}}.gate_proj",
        up=f"{BLOCK}experts.{{}}.up_proj",
        down=f"{BLOCK}experts.{{}}.down_proj",
        shared_gate_up=MergedProjections("shared_mlp.input_linear"),
        shared_down="shared_mlp.output_linear",
        stacks=stacks(f"{BLOCK}input_linear.weight", f"{BLOCK}output_linear.weight", f"{BLOCK}experts.{{}}."),
    )
)


@family("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
def granite_moe(c: ModelConfig) -> ModelSpec:
    """Two tensors a layer hold all experts; there may also be a shared one."""
    mixer, act = _mixer(c, rope=c.rope(c.width())), c.activation()
    wide = c.get("shared_intermediate_size", int, 0) if c.architecture == "GraniteMoeSharedForCausalLM" else 0
    shared = GatedFFNSpec(c.positive("shared_intermediate_size", most=MOST_WIDTH), act) if wide else None
    experts = c.experts(
        GatedFFNSpec(c.inner, act), RouterSpec(best_first=True), ("num_local_experts", "num_experts"), shared=shared
    )
    return _model(
        c, LayerNorms.pre(c.rms()), [mixer] * c.count, 1 / c.number("logits_scaling", 1.0), experts, names=MIXED
    )


@family("HyperCLOVAXForCausalLM")
def hyperclovax(c: ModelConfig) -> ModelSpec:
    """Its `logits_scaling` multiplies; its norms may stand on both sides of a branch."""
    rms = c.rms()
    norms = LayerNorms.both(rms) if c.flag("use_post_norm", True) else LayerNorms.pre(rms)
    mixer = _mixer(c, None, rope=c.rope(c.width()))
    return _model(c, norms, [mixer] * c.count, c.number("logits_scaling", 1.0), names=HYPERCLOVAX)


@family("GraniteSWAForCausalLM")
def granite_swa(c: ModelConfig) -> ModelSpec:
    """One full layer, then three with a window; sinks; each layer may have a separate base, 0 for no positions."""
    c.assume(sliding_window=128, num_key_value_heads=4)
    windows = c.windows(every(c.count + 3, 4)[3:])
    mixers = [_mixer(c, window=window, rope=rope, sinks=True) for window, rope in zip(windows, _ropes(c), strict=True)]
    return _model(c, LayerNorms.pre(c.rms(1e-5)), mixers, 1 / c.number("logits_scaling", 1.0), tied=True)


def _ropes(c: ModelConfig) -> list[RopeParameters | None]:
    common, bases = c.rope(c.width()), c.raw("layer_rope_theta")
    if bases is None:
        return [common] * c.count
    numbers = isinstance(bases, list) and all(type(base) in (int, float) for base in bases)
    if not numbers or len(bases) != c.count or not all(base == 0 or 1 < base <= LARGEST_FLOAT for base in bases):
        raise ConfigError(f"{c.where}: layer_rope_theta={shown(bases)} must hold {c.count} numbers above 1, or 0")
    return [replace(common, theta=float(base)) if base else None for base in bases]
