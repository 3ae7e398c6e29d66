"""Attention over latent rows by Triton kernels: decodes split over the keys, other queries in tiles, graph safe."""

from __future__ import annotations

import os
from collections.abc import Hashable
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from ..cache.kv_pool import KVPool
from ..kernels.attention.attention_latent import LatentScratch, LatentTile, decode, extend
from ..kernels.attention.kv_cache_write import store
from ..kernels.attention.topk_select import select_topk
from ..kernels.gemv.gemv_launch import has_room
from ..step.step_batch import StepBatch
from .backend_protocols import AttentionShape, BackendUnavailable, SinglePoolAttention
from .topk_attention import TopKSelection
from .triton_attention import DTYPES, TritonAttentionPlan, proved

WIDEST = 512  # latent


class TritonMLAAttention(SinglePoolAttention):
    """See `AttentionBackend`, and `TritonAttention` for the options; the kernels are not batch-invariant."""

    name, reason = "triton", "Triton's kernels for everything"
    capturable = True
    by_torch = None

    def __init__(
        self,
        pool: KVPool,
        shape: AttentionShape,
        page_size: int = 1,
        max_running: int = 256,
        deterministic: bool = False,
        **options: object,
    ) -> None:
        if missing := _missing(pool, shape, deterministic):
            raise BackendUnavailable(f"attention='triton' {missing}")
        self.pool, self.shape, self.page_size = pool, shape, page_size
        self.decode_tile, self.extend_tile = tiles_for(pool)
        self.most = 1 << (max_running - 1).bit_length()
        self._scratch = LatentScratch(self.most, shape.query_heads, shape.value_dim, self.decode_tile, pool.k.device)
        if pool.k.is_cuda:
            proved(self)

    def plan(self, batch: StepBatch) -> None:
        device = batch.device
        lengths = [1] * len(device.contexts) if device is not None and device.static else batch.query_lens
        decodes = sum(1 for _ in takewhile(lambda count: count == 1, lengths))
        tiles = sum(self.extend_tile.tiles(count, self.shape.query_heads) for count in lengths[decodes:])
        batch.plan = TritonAttentionPlan(decodes, len(lengths) - decodes, tiles)

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        scale = self.scales(layer).k
        store(k, None, batch.slots, self.stored(layer)[0], None, scale, scale)

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        plan, device = batch.plan, batch.device
        assert device is not None
        rows, shape = self.stored(layer)[0], self.shape
        out = torch.empty(*q.shape[:2], shape.value_dim, dtype=q.dtype, device=q.device)
        alike: dict[str, Any] = {"page_size": device.page_size, "scale": shape.scale, "row_scale": self.scales(layer).k}
        if plan.decodes:
            contexts = device.contexts[: plan.decodes]
            decode(
                q, rows, out, device.rows, contexts, device.table, scratch=self._scratch, tile=self.decode_tile, **alike
            )
        if plan.prefills:
            extend(
                q,
                rows,
                out,
                device.rows,
                device.starts,
                device.contexts,
                device.table,
                first=plan.decodes,
                sequences=plan.prefills,
                most_sequences=self.most,
                tiles=plan.tiles,
                tile=self.extend_tile,
                **alike,
            )
        return out

    def variant(self, batch: StepBatch) -> Hashable:
        """If tokens are chosen from longer contexts, the length up to which scores have room."""
        longest = max(batch.context_lens)
        return None if self.shape.chosen is None or longest <= self.shape.chosen else _room(longest)

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None:
        store(keys[:, None], None, batch.slots, self.indexed(layer)[:, None], None, 1.0, 1.0)

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        device, most = batch.device, self.shape.chosen
        assert device is not None and most is not None
        slots, counts = select_topk(
            queries,
            shares,
            self.indexed(layer),
            batch.positions,
            device.token_rows,
            device.table,
            longest=_room(max(batch.context_lens)),
            most=most,
            page_size=device.page_size,
        )
        return TopKSelection(slots[:, None], counts[:, None])

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """A query is a decode, and its tokens are the pages of a table, one token each."""
        rows, shape = self.stored(layer)[0], self.shape
        out = torch.empty(*q.shape[:2], shape.value_dim, dtype=q.dtype, device=q.device)
        every = torch.arange(self.most, dtype=torch.int32, device=q.device)
        for parts in zip(*(whole.split(self.most) for whole in (q, out, *chosen.of_rows(1))), strict=True):
            some, mixed, slots, counts = parts
            decode(
                some,
                rows,
                mixed,
                every,
                counts,
                slots,
                page_size=1,
                scale=shape.scale,
                row_scale=self.scales(layer).k,
                scratch=self._scratch,
                tile=self.decode_tile,
            )
        return out


def _room(longest: int) -> int:
    return 1 << (longest - 1).bit_length()


def tiles_for(pool: KVPool) -> tuple[LatentTile, LatentTile]:
    """By what fits an SM's shared memory and registers."""
    if pool.k.dtype == torch.float32:
        return LatentTile(block=16, stages=2), LatentTile(block=16, stages=2)
    return LatentTile() if has_room(pool.k.device) else LatentTile(stages=2), LatentTile(rows=64, warps=8, stages=2)


def _missing(pool: KVPool, shape: AttentionShape, deterministic: bool) -> str | None:
    """What the kernels would need."""
    if not (pool.k.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"):
        return f"needs a CUDA device, the pool is on {pool.k.device}"
    if pool.k.dtype not in DTYPES:
        return f"has no kernels for a KV pool of {pool.k.dtype}"
    if shape.value_dim > WIDEST:
        return f"needs latents of at most {WIDEST} numbers, not {shape.value_dim}"
    return "gives the bits of latent attention in the order of its batch" if deterministic else None
