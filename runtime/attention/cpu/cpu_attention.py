"""Attention by the compiled CPU kernels, which read the pool in place, without a gather.

A query token's result has the same bits whatever else is in the batch. If the kernels have no tiles of queries (without
AVX-512, or for heads whose width is no multiple of 32), long prefills go through torch, unless all results must be
batch-invariant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...cache.kv_pool import KVPool
from ...layers import cpu_kernels
from ...layers.float8_reference import FP8
from ...step.step_batch import StepBatch
from ..backend_protocols import AttentionShape, BackendUnavailable, SinglePoolAttention
from ..padded_attention_groups import SMALL_EXTEND, QuerySpan, spans_of
from ..topk_attention import TopKSelection
from ..torch_native_attention import PrefillGroup, TorchNativeAttention
from .cpu_attention_support import missing, refusal

NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class CpuQueryTokens:
    """Query tokens and what each sees: `length` slots from where `first` points to on.

    rows: their places in the batch, None for all of it. first: int64 addresses in `slots`, which holds the int32 slots
    of all sequences. length: int64. before: int64, tokens of the sequence in front of the first visible one.
    """

    rows: Tensor | None
    slots: np.ndarray
    first: np.ndarray
    length: np.ndarray
    before: np.ndarray

    @property
    def pointers(self) -> tuple[int, int, int]:
        """Of the arrays of `first`, `length` and `before`, which live as long as the plan."""
        return self.first.ctypes.data, self.length.ctypes.data, self.before.ctypes.data


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    tokens: CpuQueryTokens | None
    prefills: list[PrefillGroup]


class _RestoredPrefills(TorchNativeAttention):
    """For a pool in float8, which the compiled kernels dequantize."""

    def read(self, slots: Tensor, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        stored: Sequence[Tensor] = self.stored(layer)[: 1 if self.shape.latent else 2]
        size = len(slots), self.shape.kv_heads, self.shape.head_dim
        found, slots = torch.empty(len(stored), *size, dtype=dtype), slots.int()
        for kept, out, scale in zip(stored, found, self.scales(layer), strict=False):
            cpu_kernels.kernels.restore(
                cpu_kernels.KINDS[dtype],
                kept.data_ptr(),
                slots.data_ptr(),
                len(slots),
                size[1] * size[2],
                out.data_ptr(),
            )
            if scale != 1:
                out.mul_(scale)
        return found[0], found[-1]


class CpuAttention(SinglePoolAttention):
    """See `AttentionBackend`. The options of other backends are accepted and ignored.

    deterministic: bits of a query do not depend on the batch, on chunks or on cache hits.
    dtype: of the queries; it may be left out if keys are stored in it.
    """

    name, reason = "cpu", "compiled kernels for everything"
    capturable = False
    by_torch: str | None = "torch chooses tokens"

    def __init__(
        self,
        pool: KVPool,
        shape: AttentionShape,
        deterministic: bool = False,
        dtype: torch.dtype | None = None,
        **options: object,
    ) -> None:
        if (needed := _missing(pool, shape, dtype)) is not None:
            raise BackendUnavailable(refusal(needed))
        self.shape = shape
        self.dtype = dtype or (torch.float32 if pool.k.dtype == FP8 else pool.k.dtype)
        in_tiles = not shape.latent and cpu_kernels.supports_many_queries(self.dtype, shape.head_dim)
        self._small = NO_LIMIT if deterministic or in_tiles else SMALL_EXTEND
        if self._small == SMALL_EXTEND:
            self.reason = f"compiled kernels, torch for prefills of more than {SMALL_EXTEND} tokens"
        self._torch = _RestoredPrefills(pool, shape) if pool.k.dtype == FP8 else TorchNativeAttention(pool, shape)
        self.pool, self._eight = pool, pool.k.dtype == FP8
        self.addresses = [(k.data_ptr(), v.data_ptr()) for k, v in map(self.stored, range(shape.layers))]

    def plan(self, batch: StepBatch) -> None:
        plans = {reach: self._plan(batch, *reach) for reach in set(self.shape.reaches)}
        batch.plan = [plans[reach] for reach in self.shape.reaches]

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        keys, values = self.addresses[layer]
        width = self.shape.kv_heads * self.shape.head_dim
        cpu_kernels.kernels.store(
            cpu_kernels.KINDS[k.dtype],
            k.data_ptr(),
            k.stride(0),
            v.data_ptr(),
            v.stride(0),
            batch.slots.data_ptr(),
            keys,
            values,
            k.shape[0],
            width,
            self._eight,
            *self.scales(layer),
        )

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        plan: CpuAttentionPlan = batch.plan[layer]
        if plan.tokens is not None and plan.tokens.rows is None:
            return self._attend(plan.tokens, q, layer, sinks)
        out = torch.empty(*q.shape[:2], self.shape.value_dim, dtype=q.dtype)
        if plan.tokens is not None:
            out[plan.tokens.rows] = self._attend(plan.tokens, q[plan.tokens.rows], layer, sinks)
        for part in plan.prefills:
            out[part.rows] = self._torch.attend_prefill(part, q, k, v, layer, sinks)
        return out

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """A query token and KV head is a token over a pool of one KV head; those of a head have the same sinks."""
        heads = chosen.slots.shape[1]
        rows = q.unflatten(1, (heads, -1))
        if sinks is None:
            return self._over(
                1, tokens_of(chosen, self.shape.kv_heads), rows.flatten(0, 1).contiguous(), layer, None
            ).view(q.shape)
        parts = []
        for head, own in enumerate(sinks.view(heads, -1)):
            parts.append(
                self._over(1, tokens_of(chosen, self.shape.kv_heads, head), rows[:, head].contiguous(), layer, own)
            )
        return torch.cat(parts, 1)

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        plan: CpuAttentionPlan = batch.plan[layer]
        return None if plan.tokens is None or plan.prefills else (*plan.tokens.pointers, batch.slots.data_ptr())

    def _attend(self, tokens: CpuQueryTokens, q: Tensor, layer: int, sinks: Tensor | None) -> Tensor:
        return self._over(self.shape.kv_heads, tokens, q, layer, sinks)

    def _over(self, kv_heads: int, tokens: CpuQueryTokens, q: Tensor, layer: int, sinks: Tensor | None) -> Tensor:
        """kv_heads: of the pool, as the slots of `tokens` count it."""
        shape, (keys, values), (k_scale, v_scale) = self.shape, self.addresses[layer], self.scales(layer)
        out = torch.empty(q.shape, dtype=q.dtype)
        cpu_kernels.kernels.attend(
            cpu_kernels.KINDS[q.dtype],
            q.data_ptr(),
            q.stride(0),
            keys,
            values,
            out.data_ptr(),
            *tokens.pointers,
            q.shape[0],
            kv_heads,
            q.shape[1] // kv_heads,
            shape.head_dim,
            0 if sinks is None else sinks.data_ptr(),
            self._eight,
            shape.scale * k_scale,
            shape.softcap or 0.0,
            v_scale,
        )
        return out

    def _plan(self, batch: StepBatch, window: int | None, chunk: int | None) -> CpuAttentionPlan:
        if max(batch.query_lens) == 1:
            return CpuAttentionPlan(_single_tokens(batch, window, chunk), [])
        if len(batch.query_lens) == 1 and window is None and chunk is None and batch.query_lens[0] <= self._small:
            return CpuAttentionPlan(_one_sequence(batch), [])
        spans = spans_of(batch.query_lens, batch.context_slots, window, chunk)
        small = [span for span in spans if span.queries <= self._small]
        prefills = [self._torch.prefill(span, window) for span in spans if span.queries > self._small]
        tokens = _tokens(small, window, everything=not prefills) if small else None
        return CpuAttentionPlan(tokens, prefills)


def tokens_of(chosen: TopKSelection, kv_heads: int, head: int | None = None) -> CpuQueryTokens:
    """Each row of a choice, see `TopKSelection.of_rows`, or those of one KV head."""
    rows, counts = chosen.of_rows(kv_heads)
    each = slice(None) if head is None else slice(head, None, chosen.slots.shape[1])
    slots, length = rows.numpy()[each], counts.numpy()[each].astype(np.int64)
    return CpuQueryTokens(
        None, slots, slots.ctypes.data + slots.strides[0] * np.arange(len(slots)), length, np.zeros_like(length)
    )


def _missing(pool: KVPool, shape: AttentionShape, dtype: torch.dtype | None = None) -> str | None:
    """What the kernels would need."""
    stored = pool.k.dtype
    computed = dtype or (torch.float32 if stored == FP8 else stored)
    names = [str(each).removeprefix("torch.") for each in (computed, stored)]
    return missing(shape, names[0], names[1], str(pool.k.device), cpu_kernels.kernels is not None)


def _single_tokens(batch: StepBatch, window: int | None, chunk: int | None) -> CpuQueryTokens:
    """Of sequences with one new token each."""
    contexts = np.array(batch.context_lens)
    length = contexts if chunk is None else (contexts - 1) % chunk + 1
    if window is not None:
        length = np.minimum(length, window)
    slots = np.ascontiguousarray(np.concatenate(batch.context_slots), np.int32)
    return CpuQueryTokens(
        None, slots, slots.ctypes.data + slots.itemsize * (np.cumsum(contexts) - length), length, contexts - length
    )


def _one_sequence(batch: StepBatch) -> CpuQueryTokens:
    """All tokens of a step that has one sequence, in the form of `_tokens`.

    A text with its draft tokens is a frequent case.
    """
    queries, context = batch.query_lens[0], batch.context_lens[0]
    slots = np.ascontiguousarray(batch.context_slots[0], np.int32)
    length = np.arange(context - queries + 1, context + 1)
    return CpuQueryTokens(None, slots, np.full(queries, slots.ctypes.data), length, np.zeros_like(length))


def all_tokens(batch: StepBatch) -> CpuQueryTokens:
    """Those of a step, each with all that it sees."""
    return _tokens(spans_of(batch.query_lens, batch.context_slots, None), None, everything=True)


def _tokens(spans: list[QuerySpan], window: int | None, everything: bool) -> CpuQueryTokens:
    queries = np.array([span.queries for span in spans])
    contexts = np.array([span.context for span in spans])
    starts = np.cumsum(contexts) - contexts
    place = _count_up(queries)
    last = np.repeat(contexts - queries, queries) + place
    first = np.zeros_like(last) if window is None else np.maximum(last - window + 1, 0)
    rows = None if everything else torch.from_numpy(np.repeat([span.start for span in spans], queries) + place)
    slots = np.ascontiguousarray(np.concatenate([span.slots for span in spans]), np.int32)
    pointers = slots.ctypes.data + slots.itemsize * (np.repeat(starts, queries) + first)
    before = first + np.repeat([span.before for span in spans], queries)
    return CpuQueryTokens(rows, slots, pointers, last - first + 1, before)


def _count_up(counts: np.ndarray) -> np.ndarray:
    """0 .. count - 1 for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
