"""Which layers the compiled step takes on a CPU. What it leaves runs by the law, within the same step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..layers import cpu
from .expert_words import refusal
from .known_parts import unknown
from .recurrent_spec import Delta, Mamba1, Mamba2
from .recurrent_words import refusal as state_refusal
from .spec import Attention, Experts, Gated, HeadNorm, Layer, Norm, Norms, Plain, Router, ShortConv

if TYPE_CHECKING:
    from .block import Block

COMPILED: dict[type, set[str]] = {  # what of each part the compiled step computes; whatever else a part has, it leaves
    Layer: {"norms", "mixer", "ffn", "branch", "scalar"},
    Norms: {"before_mixer", "after_mixer", "before_ffn", "after_ffn", "parallel", "of_sum"},
    Attention: {
        "heads", "kv_heads", "dim", "scale", "value_dim", "rope", "bias", "out_bias", "norm", "value_norm_eps", "clip",
        "window", "chunk", "softcap", "sinks", "value_is_key", "source", "gate",
    },
    Delta: {"heads", "key_heads", "dim", "value_dim", "width", "eps", "activation", "rank", "reach", "gate", "log_rate"},
    Mamba2: {
        "heads", "dim", "size", "groups", "width", "eps", "activation", "bias", "out_bias", "conv_bias", "least", "most", "norm_first", "log_rate",
    },
    Mamba1: {"inner", "size", "rank", "width", "activation", "bias", "conv_bias", "norm", "log_rate"},
    ShortConv: {"channels", "width", "bias"},
    Norm: {"eps", "kind", "offset", "weight", "bias"},
    HeadNorm: {"norm", "over", "after"},
    Gated: {"inner", "activation", "bias", "limit"},
    Experts: {"count", "top_k", "expert", "router", "weighs_input", "shared", "switched"},
    Router: {
        "score", "best_first", "bias", "correction", "groups", "kept_groups", "group_score", "outside", "normalise", "floor", "scale", "jitter",
    },
    Plain: {"inner", "activation", "bias"},
}  # fmt: skip


def compiled_refusal(block: Block) -> str | None:
    """Why the compiled step on a CPU leaves a layer, whatever becomes of its weights, for people; None: it takes it."""
    return next(_reasons(block), None)


def _reasons(block: Block) -> Iterator[str]:
    layer, ffn = block.layer, block.layer.ffn
    if isinstance(ffn, Experts) and ffn.held is not None:
        yield "its experts lie on several ranks"
    yield from unknown(layer, COMPILED, one=True)
    if isinstance(layer.mixer, Attention):
        yield from _of_heads(layer.mixer)
    elif isinstance(layer.mixer, Delta | Mamba1 | Mamba2 | ShortConv):
        yield from state_refusal(layer.mixer)
    if isinstance(ffn, Experts):
        yield from (why for why in [refusal(ffn)] if why is not None)
    elif ffn is not None and ffn.activation not in cpu.ACTIVATIONS:
        yield f"activation {ffn.activation!r}"
    elif isinstance(ffn, Gated) and ffn.limit is not None:
        yield "a clamped gate without experts"
    if block.gate is not None:
        yield "per-layer embeddings"


def _of_heads(mixer: Attention) -> Iterator[str]:
    if mixer.dim > cpu.MOST_DIM:
        yield f"head dimension {mixer.dim}; the compiled kernels take up to {cpu.MOST_DIM}"
    if mixer.values != mixer.dim:
        yield f"values of width {mixer.values} with keys of width {mixer.dim}"
    if mixer.gate and mixer.clip is not None:
        yield "gated heads that are clipped"
