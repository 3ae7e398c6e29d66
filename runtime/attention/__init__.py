"""Attention over the paged KV pool; backends share the protocol of `base`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from ..errors import ConfigError
from ..executor.kv import PAD_SLOT, KVPool
from .base import AttentionBackend, AttentionShape
from .torch_native import TorchNativeAttention

__all__ = ["BACKENDS", "PAD_SLOT", "AttentionBackend", "AttentionShape", "attention_backend"]

BACKENDS: dict[str, Callable[[KVPool, AttentionShape], AttentionBackend]] = {"torch_native": TorchNativeAttention}


def attention_backend(name: str, pool: KVPool, shape: AttentionShape) -> AttentionBackend:
    """The backend called `name`, or with "auto" the best one for the pool's device."""
    name = "torch_native" if name == "auto" else name
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known ones: auto, {', '.join(BACKENDS)}"
        raise ConfigError(f"no attention backend is called {name!r}; {hint}")
    return BACKENDS[name](pool, shape)
