"""Which layers Triton's kernels take on a GPU. What they do not take runs by the law, within the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .spec import Attention, Gated, HeadNorm, Plain

if TYPE_CHECKING:
    from .block import Block

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 512  # head
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")


def fused_refusal(block: Block, dtype: torch.dtype) -> str | None:
    """Why the kernels do not take a layer, for people; None: they do."""
    layer = block.layer
    if dtype not in DTYPES:
        return f"the kernels have no {str(dtype).removeprefix('torch.')}"
    if block.gate is not None:
        return "it adds embeddings of its own (hidden_size_per_layer_input)"
    norms = layer.norms
    if norms.parallel and (norms.of_sum or norms.after_mixer or norms.after_ffn):
        return "mixer and feedforward network stand beside each other, with norms behind them"
    return _mixer_refusal(layer.mixer) or _ffn_refusal(layer.ffn)


def _mixer_refusal(mixer: object) -> str | None:
    if not isinstance(mixer, Attention):
        return f"its mixer is {type(mixer).__name__}, not attention"
    if mixer.values != mixer.dim:
        return f"its values are {mixer.values} wide and its keys {mixer.dim}"
    if mixer.dim % 2 or mixer.dim > WIDEST:
        return f"its heads are {mixer.dim} wide; the kernels take even widths up to {WIDEST}"
    return None if mixer.norm is None else _head_norm_refusal(mixer.norm)


def _head_norm_refusal(norm: HeadNorm) -> str | None:
    if norm.over == "all" and (norm.norm.kind != "rms" or norm.norm.bias or norm.after):
        return "queries and keys are normed as a whole by other than an RMS norm in front of the rotation"
    return None


def _ffn_refusal(ffn: object) -> str | None:
    if not isinstance(ffn, Gated | Plain):
        return f"its feedforward network is {type(ffn).__name__}"
    if ffn.activation not in ACTIVATIONS:
        return f"its activation is {ffn.activation!r}; the kernels know {', '.join(ACTIVATIONS)}"
    return None
