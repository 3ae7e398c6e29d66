"""gpt-oss: attention sinks, a window on every other layer, experts with a clamped gate; in bfloat16 or MXFP4."""

from __future__ import annotations

from collections.abc import Mapping

from ..spec.model_config import ModelConfig, every
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec, RouterSpec
from ..spec.tensor_names import ExpertTensorNames, MergedProjections, StackedExpertTensor, TensorNames
from .family_registry import family

EXPERT = "mlp.experts.{}."
SUFFIXES = {
    "": "weight",
    "_bias": "bias",
    "_blocks": "blocks",
    "_scales": "scales",
}  # of the stacked tensors, and of each expert's
STACKS = tuple(
    StackedExpertTensor(f"mlp.experts.{name}{suffix}", (f"{EXPERT}{name}.{own}",))
    for name in ("gate_up_proj", "down_proj")
    for suffix, own in SUFFIXES.items()
)


@family("GptOssForCausalLM")
def gpt_oss(c: ModelConfig) -> ModelSpec:
    """Stored as [in, out] in bfloat16, as [out, in] in MXFP4; rows of gate and up in turn."""
    c.assume(sliding_window=128)
    c.assume_rope(
        rope_type="yarn",
        rope_theta=1.5e5,
        factor=32.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=4096,
    )
    c.raw("initial_context_length", "hidden_act")  # the rotation has the one, experts have a separate activation
    c.require("experts_per_token", c.raw("num_experts_per_tok"))
    c.require("swiglu_alpha", 1.702)
    rms, bias, rope = c.rms(1e-5), c.flag("attention_bias", True), c.rope(c.width(64), theta=1.5e5)
    expert = GatedFFNSpec(c.inner, "quick_gelu", True, c.rate("swiglu_limit", 7.0))
    experts = c.experts(expert, RouterSpec(best_first=True, bias=True), ("num_local_experts", "num_experts"))
    windows = c.windows(every(c.count, 2))
    mixers = [
        c.attention(kv_heads=8, width=64, bias=bias, out_bias=bias, rope=rope, sinks=True, window=window)
        for window in windows
    ]
    return c.model([c.layer(LayerNorms.pre(rms), mixer, experts) for mixer in mixers], rms, names=_names(c))


def _names(c: ModelConfig) -> TensorNames:
    quantized = c.raw("quantization_config")
    mxfp4 = isinstance(quantized, Mapping) and quantized.get("quant_method") == "mxfp4"
    return TensorNames(
        experts=ExpertTensorNames(
            router="mlp.router",
            gate_up=MergedProjections(f"{EXPERT}gate_up_proj", "pairs"),
            down=f"{EXPERT}down_proj",
            stacks=STACKS,
            transposed=not mxfp4,
        )
    )
