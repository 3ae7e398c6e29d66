"""Attention over latent rows by the compiled CPU kernels (layers/cpu_latent.h), which read a row once for several heads."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache.kv import KVPool
from ..layers import cpu
from ..step.batch import Batch
from .base import AttentionShape
from .chosen import Chosen
from .cpu import NO_LIMIT, CpuAttention, Tokens, tokens_of


class CpuLatentAttention(CpuAttention):
    """See `CpuAttention`. A row is a key, and its first numbers are the value, of all heads."""

    def __init__(self, pool: KVPool, shape: AttentionShape, deterministic: bool = False, dtype: torch.dtype | None = None, **options: object) -> None:
        super().__init__(pool, shape, deterministic, dtype, **options)
        if cpu.kernels.AVX512:  # then they are faster than torch for prompts too
            self._small, self.reason = NO_LIMIT, "compiled kernels for everything"

    def store(self, k: Tensor, v: Tensor, layer: int, batch: Batch) -> None:
        rows, _ = self.addresses[layer]
        kind, scale = cpu.KINDS[k.dtype], self.scales(layer).k
        cpu.kernels.store(kind, k.data_ptr(), k.stride(0), 0, 0, batch.slots.data_ptr(), rows, 0, len(k), self.shape.head_dim, self._eight, scale, scale)

    def attend_chosen(self, q: Tensor, chosen: Chosen, layer: int, batch: Batch, sinks: Tensor | None = None) -> Tensor:
        return self._attend(tokens_of(chosen, 1), q, layer, None)

    def _attend(self, tokens: Tokens, q: Tensor, layer: int, sinks: Tensor | None) -> Tensor:
        shape, (rows, _) = self.shape, self.addresses[layer]
        out = torch.empty(*q.shape[:2], shape.value_dim, dtype=q.dtype)
        cpu.kernels.attend_latent(
            cpu.KINDS[q.dtype], q.data_ptr(), q.stride(0), rows, out.data_ptr(), *tokens.pointers[:2], len(q), shape.query_heads,
            shape.head_dim, shape.value_dim, self._eight, shape.scale, self.scales(layer).k,
        )  # fmt: skip
        return out
