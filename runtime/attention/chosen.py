"""Attention to chosen tokens (DSA, of DeepSeek V3.2) in torch: which tokens of its sequence a query attends to, and attention to these alone.

The law of what backends do by kernels of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..layers.float8 import restore
from ..step.batch import Batch
from .layout import AttentionShape

if TYPE_CHECKING:
    from ..cache.kv import KVPool

ROWS = 128  # queries that are scored at a time, so that their scores stay small
GATHERED = 1 << 15  # rows that are gathered at a time


class Chosen(NamedTuple):
    """What each query of a step attends to.

    slots: int32 [T, most], of the chosen tokens in order of position; behind `counts` of them, int32 [T], a row may hold anything.
    """

    slots: Tensor
    counts: Tensor


class ChosenByTorch:
    """Of a backend for equal layers. by_torch: what of attention to chosen tokens is no kernel's, if something is."""

    pool: KVPool
    shape: AttentionShape
    by_torch: str | None = "torch chooses tokens and attends to them"

    @property
    def choosing(self) -> str | None:
        """What slows steps down that choose."""
        chosen = self.shape.chosen
        return None if chosen is None or self.by_torch is None else f"in steps with more than {chosen:,} tokens of a sequence {self.by_torch}"

    def indexed(self, layer: int) -> Tensor:
        """Where a layer stores by what it chooses tokens: [slots, index_dim]."""
        return self.pool.index[self.shape.caches[layer]]

    def store_index(self, keys: Tensor, layer: int, batch: Batch) -> None:
        stored = self.indexed(layer)
        stored.index_copy_(0, batch.slots.long(), keys.to(stored.dtype))

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: Batch) -> Chosen:
        assert self.shape.chosen is not None
        return choose(queries, shares, self.indexed(layer), self.shape.chosen, batch)

    def attend_chosen(self, q: Tensor, chosen: Chosen, layer: int, batch: Batch) -> Tensor:
        cache = self.shape.caches[layer]
        return attend(q, chosen, self.pool.k[cache], self.pool.scales[cache].k, self.shape.value_dim, self.shape.scale)


def choose(queries: Tensor, shares: Tensor, keys: Tensor, most: int, batch: Batch) -> Chosen:
    """The up to `most` tokens with the highest scores among those that each query sees; of equal scores the first.

    A score is the sum over heads of share * relu(query * key / sqrt(dim)).

    queries: [T, heads, dim].  shares: float32 [T, heads].  keys: [slots, dim].
    """
    slots = torch.zeros(len(queries), most, dtype=torch.int32, device=queries.device)
    counts = (batch.positions + 1).clamp_max(most).int()
    for rows, own, first in _sequences(batch, queries.device):
        kept = keys.index_select(0, own).float()
        for start in range(rows.start, rows.stop, ROWS):
            part = slice(start, min(start + ROWS, rows.stop))
            places = _best(queries[part], shares[part], kept, first + start - rows.start, most)
            slots[part, : places.shape[1]] = own[places.clamp_max(len(own) - 1)].int()
    return Chosen(slots, counts)


def _best(queries: Tensor, shares: Tensor, keys: Tensor, first: int, most: int) -> Tensor:
    """Positions int64 [n, up to most], rising; those behind what a query sees are len(keys). first: position of the first query."""
    scores = (torch.einsum("nhd,td->nht", queries.float(), keys) * queries.shape[2] ** -0.5).relu_()
    unseen = torch.ones(len(queries), len(keys), dtype=torch.bool, device=keys.device).triu_(first + 1)
    sums = torch.einsum("nht,nh->nt", scores, shares).masked_fill_(unseen, -torch.inf)
    order = sums.sort(dim=1, descending=True, stable=True).indices[:, :most]
    return order.masked_fill_(unseen.gather(1, order), len(keys)).sort(dim=1).values


def attend(q: Tensor, chosen: Chosen, stored: Tensor, row_scale: float, value_dim: int, scale: float) -> Tensor:
    """What queries mix of the rows that they have chosen: q [T, heads, width] -> [T, heads, value_dim].

    stored: [slots, 1, width], keys, whose first numbers are the values.  row_scale: what float8 numbers were divided by.
    """
    most = chosen.slots.shape[1]
    together, places = max(1, GATHERED // most), torch.arange(most, device=q.device)
    out = q.new_empty(*q.shape[:2], value_dim)
    for start in range(0, len(q), together):
        part = slice(start, start + together)
        seen = places < chosen.counts[part, None]
        rows = stored.index_select(0, chosen.slots[part].long().masked_fill_(~seen, 0).flatten())
        keys = (rows if rows.dtype == q.dtype else restore(rows, row_scale, q.dtype)).view(-1, 1, most, rows.shape[-1])
        mixed = scaled_dot_product_attention(q[part, None], keys, keys, seen[:, None, None], scale=scale)
        out[part] = mixed[:, 0, :, :value_dim]
    return out


def _sequences(batch: Batch, device: torch.device) -> Iterator[tuple[slice, Tensor, int]]:
    """Of each sequence where its queries are in the batch, the slots of all its tokens (int64), and the position of its first query."""
    starts = pairwise(accumulate(batch.query_lens, initial=0))
    for (start, stop), slots in zip(starts, batch.context_slots, strict=True):
        yield slice(start, stop), torch.from_numpy(slots.astype(np.int64)).to(device), len(slots) - (stop - start)
