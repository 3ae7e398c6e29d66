"""Which layers the compiled step takes on a CPU. What it leaves runs by the law, within the same step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..layers import cpu
from .known_parts import unknown
from .spec import Attention, Experts, Gated, HeadNorm, Layer, Norms, Plain

if TYPE_CHECKING:
    from .block import Block

COMPILED: dict[type, set[str]] = {  # what of each part the compiled step computes; whatever else a part has, it leaves
    Layer: {"norms", "mixer", "ffn", "branch", "scalar"},
    Norms: {"before_mixer", "after_mixer", "before_ffn", "after_ffn", "parallel", "of_sum"},
    Attention: {
        "heads", "kv_heads", "dim", "scale", "value_dim", "rope", "bias", "out_bias", "norm", "value_norm_eps", "clip",
        "window", "chunk", "softcap", "sinks", "value_is_key", "source",
    },
    HeadNorm: {"norm", "over", "after"},
    Gated: {"inner", "activation", "bias"},
    Plain: {"inner", "activation", "bias"},
}  # fmt: skip


def compiled_refusal(block: Block) -> str | None:
    """Why the compiled step on a CPU leaves a layer, whatever becomes of its weights, for people; None: it takes it."""
    return next(_reasons(block), None)


def _reasons(block: Block) -> Iterator[str]:
    layer, mixer, ffn = block.layer, block.layer.mixer, block.layer.ffn
    if isinstance(ffn, Experts):
        yield "experts: the compiled step has no product for them yet"
    yield from unknown(layer, COMPILED)
    if mixer.dim > cpu.MOST_DIM:
        yield f"head dimension {mixer.dim}; the compiled kernels take up to {cpu.MOST_DIM}"
    if mixer.values != mixer.dim:
        yield f"values of width {mixer.values} with keys of width {mixer.dim}"
    if not isinstance(ffn, Experts) and ffn.activation not in cpu.ACTIVATIONS:
        yield f"activation {ffn.activation!r}"
    if block.gate is not None:
        yield "per-layer embeddings"
