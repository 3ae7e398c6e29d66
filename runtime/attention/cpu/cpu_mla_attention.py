"""Attention over latent rows by the compiled CPU kernels (csrc/attention/latent_attention.h).

A row is read once for several heads.

If the rows that a query attends to are chosen, csrc/attention/attention_topk_select.h chooses them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...cache.kv_pool import KVPool
from ...layers import cpu_kernels
from ...step.step_batch import StepBatch
from ..backend_protocols import AttentionShape
from ..topk_attention import TopKSelection
from .cpu_attention import NO_LIMIT, CpuAttention, CpuQueryTokens, all_tokens, tokens_of

ROOM = 1 << 22  # scores that are kept at a time


class CpuMLAAttention(CpuAttention):
    """See `CpuAttention`. A row is a key, and its first numbers are the value, of all heads.

    Tokens are chosen by kernels too, if the index keys are stored in the dtype of the queries.
    """

    def __init__(
        self,
        pool: KVPool,
        shape: AttentionShape,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
        **options: object,
    ) -> None:
        super().__init__(pool, shape, deterministic, dtype, **options)
        if cpu_kernels.kernels.AVX512:  # then they are faster than torch for prompts too
            self._small, self.reason = NO_LIMIT, "compiled kernels for everything"
        if pool.index.dtype == self.dtype and pool.index.shape[2] <= cpu_kernels.MOST_DIM:
            self.by_torch = None

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        rows, _ = self.addresses[layer]
        kind, scale = cpu_kernels.KINDS[k.dtype], self.scales(layer).k
        cpu_kernels.kernels.store(
            kind,
            k.data_ptr(),
            k.stride(0),
            0,
            0,
            batch.slots.data_ptr(),
            rows,
            0,
            len(k),
            self.shape.head_dim,
            self._eight,
            scale,
            scale,
        )

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        keys, most, (tokens, heads, dim) = self.indexed(layer), self.shape.chosen, queries.shape
        assert most is not None
        if self.by_torch is not None:
            return super().choose(queries, shares, layer, batch)
        seen, kind, queries = all_tokens(batch), cpu_kernels.KINDS[queries.dtype], queries.contiguous()
        width, slots = int(seen.length.max()), torch.empty(tokens, 1, most, dtype=torch.int32)
        scores = torch.empty(min(tokens, max(1, ROOM // width)), width)
        for start in range(0, tokens, len(scores)):
            count, first = min(len(scores), tokens - start), np.ascontiguousarray(seen.first[start:]).ctypes.data
            cpu_kernels.kernels.choose_tokens(
                kind,
                queries[start].data_ptr(),
                queries.stride(0),
                shares[start].data_ptr(),
                keys.data_ptr(),
                first,
                seen.length[start:].ctypes.data,
                scores.data_ptr(),
                slots[start].data_ptr(),
                count,
                heads,
                dim,
                width,
                most,
                dim**-0.5,
            )
        return TopKSelection(slots, torch.from_numpy(np.minimum(seen.length, most).astype(np.int32))[:, None])

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        return self._attend(tokens_of(chosen, 1), q, layer, None)

    def _attend(self, tokens: CpuQueryTokens, q: Tensor, layer: int, sinks: Tensor | None) -> Tensor:
        shape, (rows, _) = self.shape, self.addresses[layer]
        out = torch.empty(*q.shape[:2], shape.value_dim, dtype=q.dtype)
        cpu_kernels.kernels.attend_latent(
            cpu_kernels.KINDS[q.dtype],
            q.data_ptr(),
            q.stride(0),
            rows,
            out.data_ptr(),
            *tokens.pointers[:2],
            len(q),
            shape.query_heads,
            shape.head_dim,
            shape.value_dim,
            self._eight,
            shape.scale,
            self.scales(layer).k,
        )
        return out
