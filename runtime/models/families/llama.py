"""Llama and those that differ from it by a flag: Mistral, Qwen 2 and 3, Phi-3."""

from __future__ import annotations

from ..config import Config
from ..names import Merged, Names
from ..spec import Gated, HeadNorm, Model, Norms
from .registry import family


@family("LlamaForCausalLM")
def llama(c: Config) -> Model:
    bias, rms, dim = c.flag("attention_bias"), c.rms(), c.width()
    mixer = c.attention(bias=bias, out_bias=bias, rope=c.rope(dim))
    ffn = Gated(c.inner, c.activation(), c.flag("mlp_bias"))
    return c.model([c.layer(Norms.pre(rms), mixer, ffn)] * c.count, rms)


@family("MistralForCausalLM")
def mistral(c: Config) -> Model:
    """The window holds for all layers; where the key is absent it is 4096."""
    window = 4096 if "sliding_window" not in c.values else c.optional("sliding_window", int)
    rms = c.rms()
    mixer = c.attention(kv_heads=8, rope=c.rope(c.width()), window=window)
    return c.model([c.layer(Norms.pre(rms), mixer)] * c.count, rms)


def _late_windows(c: Config) -> tuple[int | None, ...]:
    """Qwen's: layers from `max_window_layers` on, or by `layer_types`, where windows are wanted at all."""
    first = c.get("max_window_layers", int, 28)
    default = ["sliding_attention" if index >= first else "full_attention" for index in range(c.count)]
    windows = c.windows(default)
    return windows if c.flag("use_sliding_window") else (None,) * c.count


@family("Qwen2ForCausalLM")
def qwen2(c: Config) -> Model:
    rms, rope = c.rms(), c.rope(c.width())
    mixers = [c.attention(bias=True, rope=rope, window=window) for window in _late_windows(c)]
    return c.model([c.layer(Norms.pre(rms), mixer) for mixer in mixers], rms)


@family("Qwen3ForCausalLM")
def qwen3(c: Config) -> Model:
    bias, rms, dim = c.flag("attention_bias"), c.rms(), c.width(128)
    head, rope = HeadNorm(rms), c.rope(dim)
    mixers = [
        c.attention(width=dim, norm=head, bias=bias, out_bias=bias, rope=rope, window=window) for window in _late_windows(c)
    ]
    return c.model([c.layer(Norms.pre(rms), mixer) for mixer in mixers], rms)


PHI3 = Names(qkv=Merged("self_attn.qkv_proj"), gate_up=Merged("mlp.gate_up_proj"))


@family("Phi3ForCausalLM")
def phi3(c: Config) -> Model:
    rms, window = c.rms(1e-5), c.optional("sliding_window", int)
    mixer = c.attention(rope=c.rope(c.width(), share=1.0), window=window)
    return c.model([c.layer(Norms.pre(rms), mixer)] * c.count, rms, names=PHI3)
