"""transformers' hook for attention, connected to our backend: the sequences of a step are packed without padding."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...attention.backend_protocols import AttentionBackend, LayerAttention
from ...errors import ConfigError
from ...step.step_batch import StepBatch

NAME = "sgl"  # of the attention, in transformers' table
UNDERSTOOD = {
    "dropout",
    "position_ids",
    "cache_position",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_causal",
    "output_router_logits",
}


@dataclass(slots=True)
class TransformersStep:
    """The step that a thread computes. layer: how often attention was called."""

    batch: StepBatch
    attention: AttentionBackend
    layer: int = 0


@dataclass(slots=True)
class AttentionProbe:
    """A first forward pass, which records the layers' requirements of attention; each sequence by itself, causal."""

    found: list[LayerAttention] = field(default_factory=list)


_current = threading.local()


def register() -> None:
    """Register the attention with transformers. May be called any number of times."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


@contextmanager
def during_step(what: TransformersStep | AttentionProbe) -> Iterator[None]:
    """Make this thread's forward pass use it for attention."""
    _current.what = what
    try:
        yield
    finally:
        _current.what = None


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, T, dim], key and value [1, kv_heads, T, dim] -> [1, T, heads, value_dim]."""
    what = getattr(_current, "what", None)
    if what is None:
        raise RuntimeError("a model on sgl's attention was called outside a step of the engine")
    if isinstance(what, AttentionProbe):
        what.found.append(_layer_attention(module, query, key, value, scaling, options))
        return torch.zeros_like(query).new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    index, what.layer = what.layer, what.layer + 1
    k, v = k.contiguous(), v.contiguous()
    what.attention.store(k, v, index, what.batch)
    sinks = () if options.get("s_aux") is None else (options["s_aux"].detach().float(),)
    return what.attention.attend(q.contiguous(), k, v, index, what.batch, *sinks)[None], None


def _layer_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, options: dict[str, Any]
) -> LayerAttention:
    if not getattr(module, "is_causal", True):
        raise ConfigError(
            f"{type(module).__name__} attends to what follows (is_causal=False); only causal decoders run"
        )
    known = UNDERSTOOD | {"sliding_window", "softcap", "s_aux"}
    if strange := sorted(name for name, what in options.items() if what is not None and name not in known):
        raise ConfigError(f"{type(module).__name__} asks attention for {', '.join(strange)}, which is not understood")
    return LayerAttention(
        query.shape[1],
        key.shape[1],
        query.shape[3],
        value.shape[3],
        scale=query.shape[3] ** -0.5 if scaling is None else float(scaling),
        window=options.get("sliding_window") or None,
        softcap=options.get("softcap") or None,
    )
