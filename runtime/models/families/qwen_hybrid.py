"""Qwen3-Next, Qwen 3.5 and 3.6: gated delta nets, every fourth layer gated attention; maybe experts."""

from __future__ import annotations

from dataclasses import replace

from ..spec.model_config import ModelConfig
from ..spec.model_spec import ExpertsSpec, Feedforward, GatedFFNSpec, LayerNorms, ModelSpec, QkNormSpec, RouterSpec
from ..spec.recurrent_config import FULL, counted, delta, ignored, layer_kinds, periodic
from ..spec.tensor_names import DeltaNetTensorNames, TensorNames
from .family_registry import family
from .qwen_moe import QWEN2, expert, sparse

HYBRID = replace(QWEN2, ignored=ignored())
NEXT = replace(
    HYBRID,
    delta=DeltaNetTensorNames(
        inputs=(("in_proj_qkvz", "qkvz"),), rates=(("in_proj_ba", "ba"),), by_head=("inputs", "rates")
    ),
)


def _model(c: ModelConfig, ffns: list[Feedforward], names: TensorNames) -> ModelSpec:
    c.require("attn_output_gate", True)
    c.require("output_gate_type", "swish")
    kinds, rms, dim = counted(c, layer_kinds(c, periodic(c))), c.rms(offset=1.0), c.width(256)
    bias, recurrent = c.flag("attention_bias"), delta(c, rms.eps)
    attention = c.attention(
        width=dim, norm=QkNormSpec(rms), bias=bias, out_bias=bias, rope=c.rope(dim, share=0.25), gate=True
    )
    mixers = [attention if kind == FULL else recurrent for kind in kinds]
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, ffn) for mixer, ffn in zip(mixers, ffns, strict=True)], rms, names=names
    )


def _mixture(c: ModelConfig, router: RouterSpec) -> ExpertsSpec:
    return c.experts(expert(c), router, shared=expert(c, "shared_expert_intermediate_size"), switched=True)


@family("Qwen3NextForCausalLM")
def qwen3_next(c: ModelConfig) -> ModelSpec:
    experts, dense = (
        _mixture(c, RouterSpec(normalise=c.flag("norm_topk_prob", True))),
        GatedFFNSpec(c.inner, c.activation()),
    )
    return _model(c, [experts if each else dense for each in sparse(c)], NEXT)


def _of_the_published(c: ModelConfig) -> None:
    """Keys of heads that predict several tokens, and what states are kept in."""
    c.raw("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
    c.require("mamba_ssm_dtype", "float32")


@family("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
def qwen3_5(c: ModelConfig) -> ModelSpec:
    _of_the_published(c)
    return _model(c, [GatedFFNSpec(c.inner, c.activation())] * c.count, HYBRID)


@family("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
def qwen3_5_moe(c: ModelConfig) -> ModelSpec:
    _of_the_published(c)
    c.raw("intermediate_size")  # of no layer
    return _model(c, [_mixture(c, RouterSpec(normalise=True))] * c.count, HYBRID)
