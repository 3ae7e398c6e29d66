"""Which tokens queries attend to, where a layer chooses (DSA, DeepSeek V3.2), and attention to these alone, in torch: the law."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers.float8 import restore
from ..layers.linear import Linear
from ..layers.rotary import rotate
from ..step.batch import Batch
from .latent_spec import Indexer, Latent
from .mixer import Step
from .names import Names
from .places import Place, exact, matrix, norm_for, norm_places, weight_of

ROWS = 128  # queries at a time, so that their scores stay small

Chosen = list[Tensor]  # of each sequence bool [queries, tokens]: what each query attends to


class IndexerPart:
    """`queries` gives all heads' queries of the queries' latent, `keys` the key of a token, `shares` how much each head counts."""

    def __init__(self, part: Indexer, names: Names, hidden: int, rank: int, dtype: torch.dtype, device: torch.device) -> None:
        """rank: of the queries' latent."""
        self.part, self._begin = part, names.latent.index
        self.queries = matrix(part.heads * part.dim, rank, False, False, dtype, device)
        self.keys = matrix(part.dim, hidden, False, False, dtype, device)
        self.shares = matrix(part.heads, hidden, False, False, dtype, device)
        norm = norm_for(part.norm, part.dim, device)
        assert norm is not None
        self.norm = norm

    def places(self, prefix: str) -> Iterator[Place]:
        begin = prefix + self._begin
        yield from weight_of(f"{begin}wq_b", self.queries)
        yield from weight_of(f"{begin}wk", self.keys)
        yield from exact(f"{begin}weights_proj", self.shares)
        yield from norm_places(f"{begin}k_norm", self.part.norm, self.norm)

    def products(self) -> Iterator[tuple[object, str]]:
        yield from ((self, name) for name in ("queries", "keys", "shares"))

    def tensors(self) -> Iterator[Tensor]:
        yield from (tensor for tensor in (self.norm.weight, self.norm.bias) if tensor is not None)

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        if self._order is not None:
            yield self.queries, (np.arange(self.part.heads)[:, None] * self.part.dim + self._order).ravel()
            yield self.keys, self._order

    def seal(self) -> None:
        """The norm's numbers go with the keys', which are reordered to turn."""
        if self._order is not None:
            for tensor in self.tensors():
                tensor.copy_(tensor[torch.from_numpy(self._order).to(tensor.device)])
        self.norm.seal()

    @property
    def _order(self) -> np.ndarray | None:
        order = self.part.rope.order
        return None if order is None else np.array(order)

    def choose(self, x: Tensor, latent: Tensor, step: Step, layer: int) -> Chosen | None:
        """Stores the tokens' keys. x: [T, hidden].  latent: of the queries, normed, [T, rank].  None: all is attended to."""
        batch, stored = step.batch, step.attention.indexed(layer)
        keys = rotate(self.norm(self.keys(x))[:, None], step.angles[self.part.rope])[:, 0]
        stored.index_copy_(0, batch.slots.long(), keys.to(stored.dtype))
        if max(batch.context_lens) <= self.part.most:
            return None
        queries = rotate(self.queries(latent).unflatten(1, (self.part.heads, -1)), step.angles[self.part.rope])
        shares = self.shares(x).float() * self.part.heads**-0.5
        return [
            self._chosen(queries[rows], shares[rows], stored.index_select(0, slots), first)
            for rows, slots, first in sequences(batch, x.device)
        ]

    def _chosen(self, queries: Tensor, shares: Tensor, keys: Tensor, first: int) -> Tensor:
        """Of one sequence. queries: [n, heads, dim].  shares: [n, heads].  keys: [tokens, dim].  first: position of the first query."""
        seen = causal(len(queries), first, queries.device)
        if len(keys) <= self.part.most:
            return seen
        return torch.cat([
            self._best(*parts, keys) for parts in zip(queries.split(ROWS), shares.split(ROWS), seen.split(ROWS), strict=True)
        ])  # fmt: skip

    def _best(self, queries: Tensor, shares: Tensor, seen: Tensor, keys: Tensor) -> Tensor:
        scores = (torch.einsum("nhd,td->nht", queries.float(), keys.float()) * self.part.dim**-0.5).relu_()
        sums = torch.einsum("nht,nh->nt", scores, shares).masked_fill_(~seen, -torch.inf)
        order = sums.sort(dim=1, descending=True, stable=True).indices  # of equal ones the first, whatever the step's other tokens
        return torch.zeros_like(seen).scatter_(1, order[:, : self.part.most], True) & seen


def attended(q: Tensor, chosen: Chosen, part: Latent, step: Step, layer: int) -> Tensor:
    """What queries mix of the latents they have chosen. q: [T, heads, rank + turned] -> [T, heads, rank]."""
    rows, scale = step.attention.stored(layer)[0], step.attention.scales(layer).k
    out = q.new_empty(*q.shape[:2], part.rank)
    for (own, slots, _), seen in zip(sequences(step.batch, q.device), chosen, strict=True):
        kept = rows.index_select(0, slots)
        keys = (kept if kept.dtype == q.dtype else restore(kept, scale, q.dtype)).transpose(0, 1)
        for start in range(own.start, own.stop, ROWS):
            stop = min(start + ROWS, own.stop)
            mask = seen[start - own.start : stop - own.start]
            mixed = F.scaled_dot_product_attention(q[start:stop].transpose(0, 1), keys, keys, mask, scale=part.scale, enable_gqa=True)
            out[start:stop] = mixed.transpose(0, 1)[..., : part.rank]
    return out


def sequences(batch: Batch, device: torch.device) -> Iterator[tuple[slice, Tensor, int]]:
    """Of each sequence where its queries are in the batch, the slots of all its tokens (int64), and the position of its first query."""
    starts = pairwise(accumulate(batch.query_lens, initial=0))
    for (start, stop), slots in zip(starts, batch.context_slots, strict=True):
        yield slice(start, stop), torch.from_numpy(slots.astype(np.int64)).to(device), len(slots) - (stop - start)


def causal(queries: int, first: int, device: torch.device) -> Tensor:
    """bool [queries, first + queries]: the tokens that stand before a query, and itself."""
    return torch.ones(queries, first + queries, dtype=torch.bool, device=device).tril_(first)
