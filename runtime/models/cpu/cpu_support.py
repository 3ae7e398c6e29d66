"""Which layers the compiled step supports on a CPU. The reference runs the others within the same step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...layers import cpu_kernels
from ..spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    NormSpec,
    PlainFFNSpec,
    QkNormSpec,
    RouterSpec,
    ShortConvSpec,
)
from ..spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from ..spec.unsupported_fields import unsupported_fields
from .cpu_expert_structs import refusal
from .cpu_recurrent_structs import refusal as state_refusal

if TYPE_CHECKING:
    from ..reference.reference_block import ReferenceBlock

COMPILED: dict[type, set[str]] = {  # what the compiled step computes of each part; it leaves layers with anything else
    LayerSpec: {"norms", "mixer", "ffn", "branch", "scalar"},
    LayerNorms: {"before_mixer", "after_mixer", "before_ffn", "after_ffn", "parallel", "of_sum"},
    AttentionSpec: {
        "heads",
        "kv_heads",
        "dim",
        "scale",
        "value_dim",
        "rope",
        "bias",
        "out_bias",
        "norm",
        "value_norm_eps",
        "clip",
        "window",
        "chunk",
        "softcap",
        "sinks",
        "value_is_key",
        "source",
        "gate",
    },
    DeltaNetSpec: {
        "heads",
        "key_heads",
        "dim",
        "value_dim",
        "width",
        "eps",
        "activation",
        "rank",
        "reach",
        "gate",
        "log_rate",
    },
    Mamba2Spec: {
        "heads",
        "dim",
        "size",
        "groups",
        "width",
        "eps",
        "activation",
        "bias",
        "out_bias",
        "conv_bias",
        "least",
        "most",
        "norm_first",
        "log_rate",
    },
    Mamba1Spec: {"inner", "size", "rank", "width", "activation", "bias", "conv_bias", "norm", "log_rate"},
    ShortConvSpec: {"channels", "width", "bias"},
    NormSpec: {"eps", "kind", "offset", "weight", "bias"},
    QkNormSpec: {"norm", "over", "after"},
    GatedFFNSpec: {"inner", "activation", "bias", "limit"},
    ExpertsSpec: {"count", "top_k", "expert", "router", "weighs_input", "shared", "switched"},
    RouterSpec: {
        "score",
        "best_first",
        "bias",
        "correction",
        "groups",
        "kept_groups",
        "group_score",
        "outside",
        "normalise",
        "floor",
        "scale",
        "jitter",
    },
    PlainFFNSpec: {"inner", "activation", "bias"},
}


def cpu_refusal(block: ReferenceBlock) -> str | None:
    """Why the compiled step on a CPU does not support a layer, whatever its weights become, for people; None: it
    does.
    """
    return next(_reasons(block), None)


def _reasons(block: ReferenceBlock) -> Iterator[str]:
    layer, ffn = block.layer, block.layer.ffn
    if isinstance(ffn, ExpertsSpec) and ffn.held is not None:
        yield "its experts are stored on several ranks"
    yield from unsupported_fields(layer, COMPILED, one=True)
    if isinstance(layer.mixer, AttentionSpec):
        yield from _of_heads(layer.mixer)
    elif isinstance(layer.mixer, DeltaNetSpec | Mamba1Spec | Mamba2Spec | ShortConvSpec):
        yield from state_refusal(layer.mixer)
    if isinstance(ffn, ExpertsSpec):
        yield from (why for why in [refusal(ffn)] if why is not None)
    elif ffn is not None and ffn.activation not in cpu_kernels.ACTIVATIONS:
        yield f"activation {ffn.activation!r}"
    elif isinstance(ffn, GatedFFNSpec) and ffn.limit is not None:
        yield "a clamped gate without experts"
    if block.gate is not None:
        yield "per-layer embeddings"


def _of_heads(mixer: AttentionSpec) -> Iterator[str]:
    if mixer.dim > cpu_kernels.MOST_DIM:
        yield f"head dimension {mixer.dim}; the compiled kernels take up to {cpu_kernels.MOST_DIM}"
    if mixer.values != mixer.dim:
        yield f"values of width {mixer.values} with keys of width {mixer.dim}"
    if mixer.gate and mixer.clip is not None:
        yield "gated heads that are clipped"
