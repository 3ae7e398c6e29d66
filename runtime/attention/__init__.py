"""Attention over the paged KV pool; backends share the protocol of `base`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from ..errors import ConfigError
from ..executor.kv import PAD_SLOT, KVPool
from .base import AttentionBackend, AttentionShape
from .cpu import CpuAttention
from .torch_native import TorchNativeAttention

__all__ = ["BACKENDS", "PAD_SLOT", "AttentionBackend", "AttentionShape", "attention_backend"]

BACKENDS: dict[str, Callable[[KVPool, AttentionShape], AttentionBackend]] = {
    "cpu": CpuAttention,
    "torch_native": TorchNativeAttention,
}


def attention_backend(name: str, pool: KVPool, shape: AttentionShape) -> AttentionBackend:
    """The backend called `name`, or with "auto" the best one for the pool's device."""
    if name == "auto":
        name = "cpu" if CpuAttention.suits(pool, shape) else "torch_native"
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known ones: auto, {', '.join(BACKENDS)}"
        raise ConfigError(f"no attention backend is called {name!r}; {hint}")
    if name == "cpu" and not CpuAttention.suits(pool, shape):
        raise ConfigError(
            f"attention='cpu' needs the compiled kernels, a CPU, float32 or bfloat16 and head_dim <= 256; "
            f"here: {pool.k.device}, {pool.k.dtype}, {shape.head_dim}; use attention='torch_native'"
        )
    return BACKENDS[name](pool, shape)
