"""Attention over the paged pool with torch operations only: runs anywhere, no loop over decodes.

The query heads that share a KV head become query rows of one head, so keys and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attend

from ..cache.kv import KVPool
from ..layers.float8 import FP8, restore, saturate
from ..step.batch import Batch
from . import plan as planning
from .base import AttentionShape, BackendUnavailable, OnePool
from .plan import Span

QUERY_BLOCK = 256  # queries of a prefill that share one mask; bounds the mask to this many rows


@dataclass(frozen=True, slots=True)
class PaddedGroup:
    """Sequences attended in one call. rows: where their queries are in the batch, int64 [sequences * queries]
    or a slice; real: those of the padded rows that are no padding (None: all); mask: additive, 0 or -inf."""

    sequences: int
    queries: int
    rows: slice | Tensor
    real: Tensor | None
    targets: slice | Tensor
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence with many queries; slots is None when nothing is cached: its keys are the new ones."""

    rows: slice
    slots: Tensor | None
    window: int | None


Part = PaddedGroup | Prefill


class TorchNativeAttention(OnePool):
    """See `AttentionBackend`. Padding reads `PAD_SLOT` only, so freed slots may hold anything, even NaN.

    The options of other backends are taken and ignored; raises BackendUnavailable for `deterministic`.
    """

    name, reason = "torch_native", "torch operations for everything"
    capturable = False

    def __init__(
        self, pool: KVPool, shape: AttentionShape, deterministic: bool = False, **options: object
    ) -> None:
        if deterministic:
            raise BackendUnavailable(
                "the bits of attention='torch_native' depend on the rest of the batch; use attention='auto', "
                "which takes 'triton' on a GPU and 'cpu' on the CPU"
            )
        self.pool, self.shape = pool, shape
        self._keys, self._values = zip(*map(self.stored, range(shape.layers)), strict=True)
        self._fp8 = pool.k.dtype == FP8
        self._masks: dict[int | None, Tensor] = {}

    def plan(self, batch: Batch) -> None:
        longest = max(batch.context_lens)
        parts: dict[int | None, list[Part]] = {}
        for window in set(self.shape.windows):
            effective = None if window is None or window >= longest else window
            if effective not in parts:
                parts[effective] = self._parts(batch, effective)
            parts[window] = parts[effective]
        batch.plan = [parts[window] for window in self.shape.windows]

    def store(self, k: Tensor, v: Tensor, layer: int, batch: Batch) -> None:
        slots = batch.slots.long()
        self._write(self._keys[layer], slots, k, self.pool.k_scale)
        self._write(self._values[layer], slots, v, self.pool.v_scale)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, batch: Batch) -> Tensor:
        parts: list[Part] = batch.plan[layer]
        if len(parts) == 1:  # the kernels of a device may lay their results out in another order
            part = parts[0]
            if isinstance(part, Prefill):
                return self.attend_prefill(part, q, k, v, layer).contiguous()
            if isinstance(part.targets, slice):
                return self._attend_group(part, q, layer).contiguous()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in parts:
            if isinstance(part, Prefill):
                out[part.rows] = self.attend_prefill(part, q[part.rows], k[part.rows], v[part.rows], layer)
            else:
                out[part.targets] = self._attend_group(part, q[part.rows], layer)
        return out

    def _write(self, pool: Tensor, slots: Tensor, new: Tensor, scale: float) -> None:
        if self._fp8:  # torch copies float8 by index as bytes only
            pool, new = pool.view(torch.uint8), saturate(new, scale).view(torch.uint8)
        pool.index_copy_(0, slots, new)

    def _read(self, slots: Tensor, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, kv_heads, head_dim] in `dtype`."""
        keys, values = (pool[layer].index_select(0, slots) for pool in (self._keys, self._values))
        if not self._fp8:
            return keys, values
        return restore(keys, self.pool.k_scale, dtype), restore(values, self.pool.v_scale, dtype)

    def _attend_group(self, group: PaddedGroup, q: Tensor, layer: int) -> Tensor:
        """q [sequences * queries, heads, dim] -> the same for the real rows."""
        shape, sequences, queries = self.shape, group.sequences, group.queries
        stored = (sequences, -1, shape.kv_heads, shape.head_dim)
        keys, values = (part.view(stored).transpose(1, 2) for part in self._read(group.slots, layer, q.dtype))
        mask = group.mask if group.mask is None else group.mask.to(q.dtype)
        if queries == 1:
            rows = q.view(sequences, shape.kv_heads, shape.group, shape.head_dim)
            return attend(rows, keys, values, mask).reshape(q.shape)
        split = (sequences, queries, shape.kv_heads, shape.group, shape.head_dim)
        rows = q.reshape(split).transpose(1, 2).flatten(2, 3)
        out = attend(rows, keys, values, mask)
        out = out.unflatten(2, (queries, shape.group)).transpose(1, 2).reshape(-1, *q.shape[1:])
        return out if group.real is None else out.index_select(0, group.real)

    def attend_prefill(self, part: Prefill, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """q [queries, heads, dim] -> the same."""
        shape, queries = self.shape, len(q)
        rows = q.unflatten(1, (shape.kv_heads, shape.group)).permute(1, 2, 0, 3)
        if part.slots is not None:
            k, v = self._read(part.slots, layer, q.dtype)
        across_group = (shape.kv_heads, shape.group, -1, shape.head_dim)
        keys = k.transpose(0, 1).unsqueeze(1).expand(across_group)
        values = v.transpose(0, 1).unsqueeze(1).expand(across_group)
        if part.slots is None and part.window is None:
            out = attend(rows, keys, values, is_causal=True)
        else:
            out = self._attend_blocks(rows, keys, values, part.window)
        return out.permute(2, 0, 1, 3).reshape(queries, shape.query_heads, shape.head_dim)

    def _attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Blocks of queries, each over no more keys than its last query sees."""
        queries, cached = q.shape[2], k.shape[2] - q.shape[2]
        mask = self._mask(k.shape[2], window).to(q.dtype)
        blocks = []
        for start in range(0, queries, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, queries)
            first = 0 if window is None else max(0, cached + start - window + 1)
            last, size = cached + stop, stop - start
            block = mask[QUERY_BLOCK - size :, mask.shape[1] - (last - first) :]
            if block.is_cuda:
                block = block.clone()  # the CUDA kernels read masks from aligned addresses only
            blocks.append(attend(q[:, :, start:stop], k[:, :, first:last], v[:, :, first:last], block))
        return torch.cat(blocks, 2)

    def _mask(self, keys: int, window: int | None) -> Tensor:
        """Additive causal mask of one block of queries at the end of at least `keys` keys, kept for later steps."""
        mask = self._masks.get(window)
        if mask is None or mask.shape[1] < keys:
            width = max(1 << (keys - 1).bit_length(), QUERY_BLOCK)
            mask = self._masks[window] = self._additive(planning.causal_mask(QUERY_BLOCK, width, window))
        return mask

    def _parts(self, batch: Batch, window: int | None) -> list[Part]:
        spans = planning.spans_of(batch.query_lens, batch.context_slots, window)
        groups, prefills = planning.groups_of(spans)
        parts: list[Part] = [self._group(group, window) for group in groups]
        return parts + [self.prefill(span, window) for span in prefills]

    def _group(self, group: list[Span], window: int | None) -> PaddedGroup:
        rows = planning.rows_of(group)
        visible = planning.visible(group, window)
        mask = None
        if visible is not None:
            queries_and_group = self._additive(visible)[:, None, :, None].expand(
                -1, 1, -1, self.shape.group, -1
            )
            mask = queries_and_group.flatten(2, 3)
        return PaddedGroup(
            sequences=len(group),
            queries=max(span.queries for span in group),
            rows=self._place(rows.padded),
            real=None if rows.real is None else self._index(rows.real),
            targets=self._place(rows.targets),
            slots=self._index(planning.padded_slots(group).reshape(-1)),
            mask=mask,
        )

    def prefill(self, span: Span, window: int | None) -> Prefill:
        stored = span.cached or self._fp8  # what float8 rounds off is gone for every query alike
        slots = self._index(span.slots.astype(np.int64)) if stored else None
        seen = window if window is not None and window < span.context else None
        return Prefill(slice(span.start, span.start + span.queries), slots, seen)

    def _index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.pool.k.device)

    def _place(self, rows: slice | np.ndarray) -> slice | Tensor:
        return rows if isinstance(rows, slice) else self._index(rows)

    def _additive(self, visible: np.ndarray) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=torch.float32 if self._fp8 else self.pool.k.dtype)
        return mask.masked_fill_(torch.from_numpy(~visible), float("-inf")).to(self.pool.k.device)
