"""Attention over the paged pool with torch operations only: runs anywhere, no loop over decodes, has every option.

The query heads that share a KV head become query rows of one head, so keys and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..cache.kv_pool import KVPool
from ..layers.float8_reference import FP8, restore, saturate
from ..step.step_batch import StepBatch
from . import padded_attention_groups as planning
from .backend_protocols import AttentionShape, BackendUnavailable, SinglePoolAttention
from .padded_attention_groups import QuerySpan
from .unfused_attention import attend_unfused

QUERY_BLOCK = 256  # queries of a prefill that share one mask; bounds the mask to this many rows


@dataclass(frozen=True, slots=True)
class PaddedGroup:
    """Sequences attended in one call.

    rows: where their queries are in the batch, int64 [sequences * queries] or a slice; real: those of the padded rows
    that are no padding (None: all); mask: added to the scores.
    """

    sequences: int
    queries: int
    rows: slice | Tensor
    real: Tensor | None
    targets: slice | Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillGroup:
    """Many queries of one sequence. slots: of its keys.  fresh: they are the new ones, in the same rows."""

    rows: slice
    slots: Tensor
    fresh: bool
    window: int | None


Part = PaddedGroup | PrefillGroup


class TorchNativeAttention(SinglePoolAttention):
    """See `AttentionBackend`. Padding reads `PAD_SLOT` only, so freed slots may hold anything, even NaN.

    The options of other backends are accepted and ignored; raises BackendUnavailable for `deterministic`.
    """

    name, reason = "torch_native", "torch operations for everything"
    capturable = False

    def __init__(self, pool: KVPool, shape: AttentionShape, deterministic: bool = False, **options: object) -> None:
        if deterministic:
            raise BackendUnavailable(
                "the bits of attention='torch_native' depend on the rest of the batch; use attention='auto', "
                "which takes 'triton' on a GPU and 'cpu' on the CPU"
            )
        self.pool, self.shape = pool, shape
        self._keys, self._values = zip(*map(self.stored, range(shape.layers)), strict=True)
        self._fp8 = pool.k.dtype == FP8
        self._mask_dtype = torch.float32 if self._fp8 or shape.alibi else pool.k.dtype
        self._slopes = None if shape.alibi is None else torch.tensor(shape.alibi, device=pool.k.device)
        self._masks: dict[int | None, Tensor] = {}

    def plan(self, batch: StepBatch) -> None:
        longest = max(batch.context_lens)
        parts: dict[tuple[int | None, int | None], list[Part]] = {}
        for reach in set(self.shape.reaches):
            window, chunk = (None if limit is None or limit >= longest else limit for limit in reach)
            if (window, chunk) not in parts:
                parts[window, chunk] = self._parts(batch, window, chunk)
            parts[reach] = parts[window, chunk]
        batch.plan = [parts[reach] for reach in self.shape.reaches]

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        slots = batch.slots.long()
        k_scale, v_scale = self.scales(layer)
        self._write(self._keys[layer], slots, k, k_scale)
        if not self.shape.latent:
            self._write(self._values[layer], slots, v, v_scale)

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        parts: list[Part] = batch.plan[layer]
        if len(parts) == 1:  # the kernels of a device may order the dimensions of their results differently
            part = parts[0]
            if isinstance(part, PrefillGroup):
                return self.attend_prefill(part, q, k, v, layer, sinks).contiguous()
            if isinstance(part.targets, slice):
                return self._attend_group(part, q, layer, sinks).contiguous()
        out = q.new_empty(*q.shape[:2], self.shape.value_dim)
        for part in parts:
            if isinstance(part, PrefillGroup):
                out[part.rows] = self.attend_prefill(part, q, k, v, layer, sinks)
            else:
                out[part.targets] = self._attend_group(part, q, layer, sinks)
        return out

    def _write(self, pool: Tensor, slots: Tensor, new: Tensor, scale: float) -> None:
        if self._fp8:  # torch copies float8 by index as bytes only
            pool, new = pool.view(torch.uint8), saturate(new, scale).view(torch.uint8)
        pool.index_copy_(0, slots, new)

    def read(self, slots: Tensor, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, kv_heads, head_dim] in `dtype`; of latents whole rows as both, which torch attends
        twice as fast.
        """
        if self.shape.latent:
            rows = self._keys[layer].index_select(0, slots)
            rows = restore(rows, self.scales(layer).k, dtype) if self._fp8 else rows
            return rows, rows
        keys, values = (pool[layer].index_select(0, slots) for pool in (self._keys, self._values))
        if not self._fp8:
            return keys, values
        k_scale, v_scale = self.scales(layer)
        return restore(keys, k_scale, dtype), restore(values, v_scale, dtype)

    def _attend_group(self, group: PaddedGroup, q: Tensor, layer: int, sinks: Tensor | None) -> Tensor:
        """q [T, heads, dim] -> [real rows, heads, value_dim]."""
        shape, sequences, queries = self.shape, group.sequences, group.queries
        keys, values = (
            part.unflatten(0, (sequences, -1)).transpose(1, 2) for part in self.read(group.slots, layer, q.dtype)
        )
        q = q[group.rows]
        split = (sequences, queries, shape.kv_heads, shape.group, shape.head_dim)
        rows = q.reshape(split).transpose(1, 2).flatten(2, 3)
        if sinks is not None:
            sinks = sinks.view(shape.kv_heads, 1, shape.group).expand(-1, queries, -1).reshape(shape.kv_heads, -1, 1)
        out = self._attend(rows, keys, values, group.mask, sinks)[..., : shape.value_dim]
        out = out.unflatten(2, (queries, shape.group)).transpose(1, 2).reshape(-1, shape.query_heads, shape.value_dim)
        return out if group.real is None else out.index_select(0, group.real)

    def attend_prefill(
        self, part: PrefillGroup, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, sinks: Tensor | None = None
    ) -> Tensor:
        """q [T, heads, dim] -> [queries of this part, heads, value_dim]."""
        shape = self.shape
        rows = q[part.rows].unflatten(1, (shape.kv_heads, shape.group)).permute(1, 2, 0, 3)
        if k is None or v is None or not part.fresh:
            k, v = self.read(part.slots, layer, q.dtype)
        else:
            k, v = k[part.rows], (k if shape.latent else v)[part.rows]
        keys, values = (x.transpose(0, 1).unsqueeze(1).expand(-1, shape.group, -1, -1) for x in (k, v))
        if sinks is not None:
            sinks = sinks.view(shape.kv_heads, shape.group, 1, 1)
        if part.fresh and part.window is None and not self._must_write(sinks):
            out = scaled_dot_product_attention(rows, keys, values, is_causal=True, scale=shape.scale)
        else:
            out = self._attend_blocks(rows, keys, values, part.window, sinks)
        return out[..., : shape.value_dim].permute(2, 0, 1, 3).reshape(-1, shape.query_heads, shape.value_dim)

    def _attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, window: int | None, sinks: Tensor | None) -> Tensor:
        """Blocks of queries, each over no more keys than its last query sees."""
        queries, cached = q.shape[2], k.shape[2] - q.shape[2]
        mask = self._mask(k.shape[2], window)
        blocks = []
        for start in range(0, queries, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, queries)
            first = 0 if window is None else max(0, cached + start - window + 1)
            last, size = cached + stop, stop - start
            block = mask[..., QUERY_BLOCK - size :, mask.shape[-1] - (last - first) :]
            if block.is_cuda:
                block = block.clone()  # the CUDA kernels read masks from aligned addresses only
            blocks.append(self._attend(q[:, :, start:stop], k[:, :, first:last], v[:, :, first:last], block, sinks))
        return torch.cat(blocks, 2)

    def _must_write(self, sinks: Tensor | None) -> bool:
        """Whether torch's own operation does not support it.

        It needs masks of the queries' type, too coarse for ALiBi.
        """
        return sinks is not None or self.shape.softcap is not None or self.shape.alibi is not None

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
        shape = self.shape
        if self._must_write(sinks):
            return attend_unfused(q, k, v, mask, shape.scale, shape.softcap, sinks)
        if mask is not None:
            mask = mask.to(q.dtype)
        return scaled_dot_product_attention(q, k, v, mask, scale=shape.scale)

    def _mask(self, keys: int, window: int | None) -> Tensor:
        """Added to the scores of one block of queries at the end of at least `keys` keys, kept for later steps.

        [queries, keys], with ALiBi [kv_heads, group, queries, keys].
        """
        mask = self._masks.get(window)
        if mask is None or mask.shape[-1] < keys:
            width = max(1 << (keys - 1).bit_length(), QUERY_BLOCK)
            mask = self._masks[window] = self._block_mask(planning.distances_in_block(QUERY_BLOCK, width), window)
        return mask

    def _block_mask(self, distance: np.ndarray, window: int | None) -> Tensor:
        mask = self._additive(planning.visible(distance, window))
        if self._slopes is None:
            return mask
        slopes = self._slopes.view(self.shape.kv_heads, self.shape.group, 1, 1)
        return mask - slopes * self._index(distance)

    def _group_mask(self, distance: np.ndarray, window: int | None) -> Tensor:
        """[sequences, 1 or kv_heads, queries * group, keys]"""
        shape = self.shape
        mask = self._additive(planning.visible(distance, window))[:, None, :, None]
        if self._slopes is not None:
            slopes = self._slopes.view(shape.kv_heads, 1, shape.group, 1)
            mask = mask - slopes * self._index(distance)[:, None, :, None]
        return mask.expand(-1, -1, -1, shape.group, -1).flatten(2, 3)

    def _parts(self, batch: StepBatch, window: int | None, chunk: int | None) -> list[Part]:
        spans = planning.spans_of(batch.query_lens, batch.context_slots, window, chunk)
        groups, prefills = planning.groups_of(spans)
        parts: list[Part] = [self._group(group, window) for group in groups]
        return parts + [self.prefill(span, window) for span in prefills]

    def _group(self, group: list[QuerySpan], window: int | None) -> PaddedGroup:
        rows = planning.rows_of(group)
        unmasked = planning.all_visible(group) and self._slopes is None
        return PaddedGroup(
            sequences=len(group),
            queries=max(span.queries for span in group),
            rows=self._place(rows.padded),
            real=None if rows.real is None else self._index(rows.real),
            targets=self._place(rows.targets),
            slots=self._index(planning.padded_slots(group).reshape(-1)),
            mask=None if unmasked else self._group_mask(planning.distances(group), window),
        )

    def prefill(self, span: QuerySpan, window: int | None) -> PrefillGroup:
        fresh = not span.cached and not self._fp8  # what float8 rounds off is gone for every query alike
        seen = window if window is not None and window < span.context else None
        rows = slice(span.start, span.start + span.queries)
        return PrefillGroup(rows, self._index(span.slots.astype(np.int64)), fresh, seen)

    def _index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.pool.k.device)

    def _place(self, rows: slice | np.ndarray) -> slice | Tensor:
        return rows if isinstance(rows, slice) else self._index(rows)

    def _additive(self, visible: np.ndarray) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self._mask_dtype)
        return mask.masked_fill_(torch.from_numpy(~visible), float("-inf")).to(self.pool.k.device)
