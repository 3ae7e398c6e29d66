"""Which layers the Triton kernels support on a GPU. The reference runs the others within the same step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..reference.reference_experts import ReferenceExperts
from ..spec.latent_attention_spec import LatentAttentionSpec
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
from ..spec.recurrent_spec import DeltaNetSpec, Mamba2Spec
from ..spec.unsupported_fields import unsupported_fields
from .gpu_expert_support import refusal

if TYPE_CHECKING:
    from ..reference.reference_block import ReferenceBlock

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 512  # of a head
LARGEST_STATE, MOST_SEEN = 128 * 256, 16  # numbers of a head's state, and tokens that a convolution sees
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")
FUSED: dict[type, set[str]] = {  # what the kernels, or attention, compute of each part
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
        "temperature",
        "window",
        "chunk",
        "softcap",
        "alibi",
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
        "tiled",
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
    ShortConvSpec: {"channels", "width", "bias"},
    QkNormSpec: {"norm", "over", "after"},
    LatentAttentionSpec: {
        "heads",
        "rank",
        "dim",
        "turned",
        "value_dim",
        "scale",
        "norm",
        "rope",
        "query_rank",
        "bias",
        "out_bias",
        "temperature",
        "share",
    },
    NormSpec: {"kind", "eps", "offset", "weight", "bias"},
    GatedFFNSpec: {"inner", "activation", "bias", "limit"},
    ExpertsSpec: {"count", "top_k", "expert", "router", "weighs_input", "shared", "switched", "held"},
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
KNOWN = AttentionSpec(1, 1, 2, 1.0)  # a supported mixer


def gpu_refusal(block: ReferenceBlock, dtype: torch.dtype) -> str | None:
    """Why the kernels do not support a layer, for people; None: they do."""
    return next(_reasons(block, dtype), None)


def gpu_refusal_around_mixer(block: ReferenceBlock, dtype: torch.dtype) -> str | None:
    """Why the kernels do not support the parts around a layer's mixer either; None: they do, whatever the mixer is."""
    if block.mixer is None or block.mixer.output is None or block.ffn is None:
        return "a layer without a mixer, its projection or a feedforward network"
    return next(_around(block, replace(block.layer, mixer=KNOWN), dtype), None)


def _reasons(block: ReferenceBlock, dtype: torch.dtype) -> Iterator[str]:
    yield from _around(block, block.layer, dtype)
    mixer = block.layer.mixer
    if isinstance(mixer, LatentAttentionSpec):
        yield from _of_latents(mixer)
    elif isinstance(mixer, DeltaNetSpec | Mamba2Spec | ShortConvSpec):
        yield from _of_states(mixer)
    else:
        yield from _of_heads(block.layer.attention)


def _of_latents(mixer: LatentAttentionSpec) -> Iterator[str]:
    if mixer.norm.kind != "rms" or mixer.norm.bias:
        yield f"a {mixer.norm.kind} norm of latents{' with a bias' if mixer.norm.bias else ''}"
    if mixer.turned % 2:
        yield f"{mixer.turned} numbers that turn; the kernels take even ones"


def _around(block: ReferenceBlock, layer: LayerSpec, dtype: torch.dtype) -> Iterator[str]:
    norms = layer.norms
    if dtype not in DTYPES:
        yield f"the kernels have no {str(dtype).removeprefix('torch.')}"
    yield from unsupported_fields(layer, FUSED)
    if block.gate is not None:
        yield "per-layer embeddings"
    if norms.parallel and (norms.of_sum or norms.after_mixer or norms.after_ffn):
        yield "post-norms on parallel branches"
    if isinstance(block.ffn, ReferenceExperts):
        yield from refusal(block.ffn, ACTIVATIONS)
    elif block.dense.part.activation not in ACTIVATIONS:
        yield f"activation {block.dense.part.activation!r}"
    elif getattr(block.dense.part, "limit", None) is not None:
        yield "a clamped gate without experts"


def _of_heads(mixer: AttentionSpec) -> Iterator[str]:
    if mixer.values != mixer.dim:
        yield f"values of width {mixer.values} with keys of width {mixer.dim}"
    if mixer.dim % 2 or mixer.dim > WIDEST:
        yield f"head dimension {mixer.dim}; the kernels take even ones up to {WIDEST}"
    norm = mixer.norm
    if norm is not None and norm.over == "all" and (norm.norm.kind != "rms" or norm.norm.bias or norm.after):
        yield "a QK-norm over all heads other than an RMS norm before RoPE"


def _of_states(mixer: DeltaNetSpec | Mamba2Spec | ShortConvSpec) -> Iterator[str]:
    if not 2 <= mixer.width <= MOST_SEEN:
        yield f"a convolution of {mixer.width} tokens; the kernels take 2 to {MOST_SEEN}"
    if isinstance(mixer, ShortConvSpec):
        return
    _, keys, values = mixer.state[1].shape
    if _padded(keys) * _padded(values) > LARGEST_STATE:
        yield f"states of {keys} x {values} a head; a program holds {LARGEST_STATE:,} numbers"
    if mixer.activation not in ACTIVATIONS:
        yield f"activation {mixer.activation!r} after a convolution"


def _padded(size: int) -> int:
    """The power of two that a kernel pads this size to."""
    return 1 << (size - 1).bit_length()
