"""Attention to chosen tokens in torch: the choice of tokens (DSA, of DeepSeek V3.2), and attention to these only.

It is the reference for the backends' kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..layers.float8_reference import restore
from ..step.step_batch import StepBatch
from .attention_layout import AttentionShape
from .unfused_attention import attend_unfused

if TYPE_CHECKING:
    from ..cache.kv_pool import KVPool

ROWS = 128  # queries that are scored at a time, so that their scores stay small
GATHERED = 1 << 15  # rows that are gathered at a time


class TopKSelection(NamedTuple):
    """The tokens that queries attend to, by KV head: the first `heads` of the existing ones.

    slots: int32 [T, heads, most], of the chosen tokens, each once.  counts: int32 [T, heads], how many these are, at
        least one; the rest of a row is undefined.
    """

    slots: Tensor
    counts: Tensor

    def of_rows(self, kv_heads: int) -> tuple[Tensor, Tensor]:
        """The same of queries of one KV head each, over a pool of `kv_heads` rows
        a slot: [T * heads, most] and [T * heads].
        """
        heads = torch.arange(self.slots.shape[1], dtype=torch.int32, device=self.slots.device)
        slots = self.slots if kv_heads == 1 else self.slots * kv_heads + heads[:, None]
        return slots.flatten(0, 1), self.counts.flatten()


class TopKByTorch:
    """For a backend for equal layers. by_torch: the part of attention to chosen tokens that runs in torch, if any."""

    pool: KVPool
    shape: AttentionShape
    by_torch: str | None = "torch chooses tokens and attends to them"

    @property
    def choosing(self) -> str | None:
        """What slows down steps that choose tokens."""
        chosen = self.shape.chosen
        return (
            None
            if chosen is None or self.by_torch is None
            else f"in steps with more than {chosen:,} tokens of a sequence {self.by_torch}"
        )

    def indexed(self, layer: int) -> Tensor:
        """The index keys of a layer, by which it chooses tokens: [slots, index_dim]."""
        return self.pool.index[self.shape.caches[layer]]

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None:
        stored = self.indexed(layer)
        stored.index_copy_(0, batch.slots.long(), keys.to(stored.dtype))

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        assert self.shape.chosen is not None
        return choose(queries, shares, self.indexed(layer), self.shape.chosen, batch)

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        return attend(q, chosen, self.pool, self.shape, layer, sinks)


def choose(queries: Tensor, shares: Tensor, keys: Tensor, most: int, batch: StepBatch) -> TopKSelection:
    """The up to `most` tokens with the highest scores among those that each query sees; of equal scores the first.

    A score is the sum over heads of share * relu(query * key / sqrt(dim)).

    queries: [T, heads, dim].  shares: float32 [T, heads].  keys: [slots, dim].
    """
    slots = torch.zeros(len(queries), 1, most, dtype=torch.int32, device=queries.device)
    counts = (batch.positions + 1).clamp_max(most).int()
    for rows, own, first in sequences(batch, queries.device):
        kept = keys.index_select(0, own).float()
        for start in range(rows.start, rows.stop, ROWS):
            part = slice(start, min(start + ROWS, rows.stop))
            places = _best(queries[part], shares[part], kept, first + start - rows.start, most)
            slots[part, 0, : places.shape[1]] = own[places.clamp_max(len(own) - 1)].int()
    return TopKSelection(slots, counts[:, None])


def _best(queries: Tensor, shares: Tensor, keys: Tensor, first: int, most: int) -> Tensor:
    """Positions int64 [n, up to most], rising; those beyond what a query sees are len(keys).

    first: position of the first query.
    """
    scores = (torch.einsum("nhd,td->nht", queries.float(), keys) * queries.shape[2] ** -0.5).relu_()
    unseen = torch.ones(len(queries), len(keys), dtype=torch.bool, device=keys.device).triu_(first + 1)
    sums = torch.einsum("nht,nh->nt", scores, shares).masked_fill_(unseen, -torch.inf)
    order = sums.sort(dim=1, descending=True, stable=True).indices[:, :most]
    return order.masked_fill_(unseen.gather(1, order), len(keys)).sort(dim=1).values


def attend(
    q: Tensor, chosen: TopKSelection, pool: KVPool, shape: AttentionShape, layer: int, sinks: Tensor | None = None
) -> Tensor:
    """q [T, query heads of the KV heads in `chosen`, head_dim] -> [T, query heads, value_dim].

    sinks: see `AttentionBackend.attend`.
    """
    slots, counts = chosen.of_rows(shape.kv_heads)
    rows = q.reshape(len(slots), 1, -1, q.shape[2])
    group, most = rows.shape[2], slots.shape[1]
    logits = None if sinks is None else sinks.view(1, -1, 1, group, 1).expand(len(q), -1, -1, -1, -1).flatten(0, 1)
    out = q.new_empty(len(slots), group, shape.value_dim)
    together, places = max(1, GATHERED // most), torch.arange(most, device=q.device)
    for start in range(0, len(slots), together):
        part = slice(start, start + together)
        seen = places < counts[part, None]
        keys, values = _gathered(slots[part].long().masked_fill_(~seen, 0), pool, shape, layer, q.dtype)
        mixed = _mixed(rows[part], keys, values, seen[:, None, None], shape, None if logits is None else logits[part])
        out[part] = mixed[:, 0, :, : shape.value_dim]
    return out.view(len(q), -1, shape.value_dim)


def _gathered(
    slots: Tensor, pool: KVPool, shape: AttentionShape, layer: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values [n, 1, most, width]; where values are numbers of keys, keys for both, which torch attends
    faster."""
    cache = shape.caches[layer]
    found = []
    for stored, scale in zip((pool.k,) if shape.latent else (pool.k, pool.v), pool.scales[cache], strict=False):
        rows = stored[cache].flatten(0, 1).index_select(0, slots.flatten())
        found.append(
            (rows if rows.dtype == dtype else restore(rows, scale, dtype)).view(len(slots), 1, slots.shape[1], -1)
        )
    return found[0], found[-1]


def _mixed(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, shape: AttentionShape, sinks: Tensor | None) -> Tensor:
    if sinks is None and shape.softcap is None:
        return scaled_dot_product_attention(q, k, v, seen, scale=shape.scale)
    mask = torch.zeros(seen.shape, device=q.device).masked_fill_(~seen, -torch.inf)
    return attend_unfused(q, k, v, mask, shape.scale, shape.softcap, sinks)


def sequences(batch: StepBatch, device: torch.device) -> Iterator[tuple[slice, Tensor, int]]:
    """Of each sequence where its queries are in the batch, the slots of all its tokens (int64), and the position of its
    first query.
    """
    starts = pairwise(accumulate(batch.query_lens, initial=0))
    for (start, stop), slots in zip(starts, batch.context_slots, strict=True):
        yield slice(start, stop), torch.from_numpy(slots.astype(np.int64)).to(device), len(slots) - (stop - start)
