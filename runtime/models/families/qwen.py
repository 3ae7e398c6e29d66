"""Qwen 2 and 3, and the text models of their vision wrappers."""

from __future__ import annotations

from typing import Any

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec, QkNormSpec
from .family_registry import family


def _late_windows(c: ModelConfig) -> tuple[int | None, ...]:
    """Qwen's: layers from `max_window_layers` on, or by `layer_types`, where windows are wanted at all."""
    first = c.get("max_window_layers", int, 28)
    default = ["sliding_attention" if index >= first else "full_attention" for index in range(c.count)]
    windows = c.windows(default)
    return windows if c.flag("use_sliding_window") else (None,) * c.count


@family("Qwen2ForCausalLM")
def qwen2(c: ModelConfig) -> ModelSpec:
    return second(c, 1e4)


def second(c: ModelConfig, theta: float, **options: Any) -> ModelSpec:
    """Qwen 2's. options: of the model."""
    rms, rope = c.rms(), c.rope(c.width(), theta=theta)
    mixers = [c.attention(bias=True, rope=rope, window=window) for window in _late_windows(c)]
    return c.model([c.layer(LayerNorms.pre(rms), mixer) for mixer in mixers], rms, **options)


@family("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
def qwen2_vl(c: ModelConfig) -> ModelSpec:
    """Of text all three axes of a position are the same, so that it turns as Qwen 2."""
    c.assume(num_key_value_heads=8, rms_norm_eps=1e-5, max_window_layers=80)
    return second(c, 1e6)


@family("Qwen3ForCausalLM")
def qwen3(c: ModelConfig) -> ModelSpec:
    bias, rms, dim = c.flag("attention_bias"), c.rms(), c.width(128)
    head, rope = QkNormSpec(rms), c.rope(dim)
    mixers = [
        c.attention(width=dim, norm=head, bias=bias, out_bias=bias, rope=rope, window=window)
        for window in _late_windows(c)
    ]
    return c.model([c.layer(LayerNorms.pre(rms), mixer) for mixer in mixers], rms)


@family("Qwen3VLForConditionalGeneration")
def qwen3_vl(c: ModelConfig) -> ModelSpec:
    bias, rms, dim = c.flag("attention_bias"), c.rms(), c.width(128)
    mixer = c.attention(width=dim, norm=QkNormSpec(rms), bias=bias, out_bias=bias, rope=c.rope(dim, theta=5e5))
    return c.model([c.layer(LayerNorms.pre(rms), mixer)] * c.count, rms)
