"""Attention over the paged KV pool; backends share the protocol of `attention_backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..cache.kv_pool import PAD_SLOT
    from .attention_layout import AttentionLayout, AttentionShape, LayerAttention
    from .backend_protocols import AttentionBackend, BackendUnavailable
    from .choose_backend import BACKENDS, attention_backend

__all__ = [
    "BACKENDS",
    "PAD_SLOT",
    "AttentionBackend",
    "AttentionLayout",
    "AttentionShape",
    "BackendUnavailable",
    "LayerAttention",
    "attention_backend",
]

_HOMES = {
    "backend_protocols": ("AttentionBackend", "BackendUnavailable"),
    "attention_layout": ("AttentionLayout", "AttentionShape", "LayerAttention"),
    "choose_backend": ("BACKENDS", "attention_backend"),
}

__getattr__ = lazy_names(__name__, _HOMES)
