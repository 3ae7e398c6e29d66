"""The reference for latent attention, in torch: project to latents, norm, rotate, store, attend.

The projection from latents to keys is applied to the queries instead, and the one to values to the attention output
(weight absorption). Heads attend to the latents themselves, of which a token has one for all heads. Only long prompts
are cheaper the other way round: see `_expanded`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention.topk_attention import TopKSelection
from ...layers import cpu_kernels
from ...layers.headwise_matmul import HeadwiseMatmul
from ...layers.linear_layers import Linear
from ...layers.norm_layers import PerHeadNorm, RMSNorm
from ...layers.rotary_embedding import RotaryAngles, rotate
from ..spec.latent_attention_spec import LatentAttentionSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_shapes import latent_ups
from ..spec.weight_targets import WeightTarget, matrix, norm_for, weight_of
from .reference_attention import temperatures
from .reference_indexer import ReferenceIndexer
from .reference_mixer import ProjectedMixer, ReferenceStep
from .tensor_parallel_linear import precomputed

# new tokens of each sequence of a step from which it is faster on a CPU to compute keys and values of them all
FRESH = 1024


class ReferenceLatentAttention(ProjectedMixer):
    """`query` projects all heads' own numbers, then all rotated ones, `latent` a token's row; `output` the heads'
    values.

    query_down: to the queries' latent, if they have one.  up: as it is loaded, for each head the projection to keys,
        then to values. Once sealed, `absorb` and `expand` have it, by head.
    """

    def __init__(
        self,
        part: LatentAttentionSpec,
        names: TensorNames,
        index: int,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.part, self.index, self._names = part, index, names
        made = dtype, device
        few = part.query_rank
        self.query_down = None if few is None else matrix(few, hidden, part.bias, False, *made)
        self.query_norm = None if few is None else norm_for(part.norm, few, device)
        self.query_width = part.heads * (part.dim + part.turned)
        self.query = matrix(self.query_width, few or hidden, False, False, *made)
        self.latent = matrix(part.rank + part.turned, hidden, part.bias, False, *made)
        self.norm = RMSNorm(part.rank, part.norm.eps, device, part.norm.offset)
        self.up = [torch.empty(shape, dtype=dtype, device=device) for shape in latent_ups(part, names)]
        self.output = matrix(hidden, part.heads * part.value_dim, part.out_bias, False, *made)
        own = part.own_indexer
        self.indexer = None if own is None else ReferenceIndexer(own, names, hidden, few or hidden, *made)

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        names, own = self._names, self._names.latent
        if self.query_down is not None and self.query_norm is not None:
            yield from weight_of(prefix + own.query_down, self.query_down)
            yield WeightTarget(f"{prefix}{own.query_norm}.weight", self.query_norm.weight)
        yield from weight_of(prefix + (names.q if self.query_down is None else own.query_up), self.query)
        yield from weight_of(prefix + own.down, self.latent)
        yield WeightTarget(f"{prefix}{own.norm}.weight", self.norm.weight)
        for name, tensor in zip(own.halves or (own.up,), self.up, strict=False):
            yield WeightTarget(f"{prefix}{name}.weight", tensor)
        yield from weight_of(prefix + names.output, self.output)
        if self.indexer is not None:
            yield from self.indexer.places(prefix)

    def finish_loading(self) -> None:
        """The projections to keys and values are split by head."""
        super().finish_loading()
        keys, values = _by_head(self.part, self.up)
        self.absorb, self.expand, self.up = HeadwiseMatmul(keys), HeadwiseMatmul(values.transpose(1, 2)), []
        self._by_head = PerHeadNorm(self.norm.weight[None], self.norm.eps)

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        part = self.part
        turning = list(range(part.turned)) if part.rope is None or part.rope.order is None else part.rope.order
        heads = np.arange(part.heads * (part.dim + part.turned)).reshape(part.heads, -1)
        yield self.query, np.concatenate([heads[:, : part.dim].ravel(), heads[:, part.dim :][:, turning].ravel()])
        yield self.latent, np.concatenate([np.arange(part.rank), part.rank + np.array(turning)])
        yield from super().orders()

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the attention output of each token, [T, heads * value_dim]; rows are written.

        With a share of the rows: the projected output for these, 0 for the others: [T, hidden].
        """
        row = self._row(x, step)
        step.attention.store(row, row[..., : self.part.rank], self.index, step.batch)
        own = step.batch.own
        if own is None:
            return self._mixed(x, row, step)
        if own.batch is None:
            return torch.zeros_like(x)
        angles = {rope: RotaryAngles(*(part[own.rows] for part in each)) for rope, each in step.angles.items()}
        mixed = self._mixed(x[own.rows], row[own.rows], ReferenceStep(own.batch, step.attention, angles))
        return precomputed(self.output).of_rows(mixed, own.rows, len(x))

    def _mixed(self, x: Tensor, row: Tensor, step: ReferenceStep) -> Tensor:
        """The attention output of queries of x, whose rows are stored."""
        latent = self._query_latent(x)
        own, turned = self._queries(latent, step)
        chosen = self._chosen(x, latent, step)
        if chosen is None and is_fresh(step, x):
            return self._expanded(torch.cat((own, turned), 2), row[:, 0], step.batch.query_lens)
        q = torch.cat((self.absorb(own), turned), 2)
        if chosen is None:
            return self.expand(
                step.attention.attend(q, row, row[..., : self.part.rank], self.index, step.batch)
            ).flatten(1)
        return self.expand(step.attention.attend_topk(q, chosen, self.index, step.batch)).flatten(1)

    def _expanded(self, q: Tensor, rows: Tensor, lengths: list[int]) -> Tensor:
        """For sequences that begin here, each over itself only.

        q: [T, heads, dim + turned].  rows: [T, rank + turned]
        """
        part = self.part
        latents, turned = rows.expand(part.heads, -1, -1).split_with_sizes((part.rank, part.turned), 2)
        keys = torch.cat((torch.bmm(latents, self.absorb.weight.mT), turned), 2)
        values = F.pad(
            torch.bmm(latents, self.expand.weight), (0, max(0, part.dim + part.turned - part.value_dim))
        )  # torch is faster on equal widths
        parts = []
        for start, stop in pairwise(accumulate(lengths, initial=0)):
            own, k, v = (each[None, :, start:stop] for each in (q.transpose(0, 1), keys, values))
            parts.append(F.scaled_dot_product_attention(own, k, v, is_causal=True, scale=part.scale))
        return torch.cat(parts, 2)[0, ..., : part.value_dim].transpose(0, 1).flatten(1)

    def _row(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """[T, 1, rank + turned]"""
        latent, turned = self.latent(x)[:, None].split_with_sizes((self.part.rank, self.part.turned), 2)
        return torch.cat((self._by_head(latent), self._turned(turned, step)), 2)

    def _chosen(self, x: Tensor, latent: Tensor, step: ReferenceStep) -> TopKSelection | None:
        """The tokens that the step's queries attend to; None: all."""
        if self.indexer is not None:
            step.batch.chosen = self.indexer.choose(x, latent, step, self.index)
        found: TopKSelection | None = None if self.part.indexer is None else step.batch.chosen
        return found

    def _query_latent(self, x: Tensor) -> Tensor:
        """x itself if queries have no latent."""
        return x if self.query_down is None or self.query_norm is None else self.query_norm(self.query_down(x))

    def _queries(self, x: Tensor, step: ReferenceStep) -> tuple[Tensor, Tensor]:
        """From their latent, the parts for latents and for rotation, [T, heads, dim] and [T, heads, turned]."""
        part = self.part
        own, turned = self.query(x).split_with_sizes((part.heads * part.dim, part.heads * part.turned), 1)
        own, turned = (
            own.unflatten(1, (part.heads, part.dim)),
            self._turned(turned.unflatten(1, (part.heads, part.turned)), step),
        )
        if part.temperature is None:
            return own, turned
        factors = temperatures(part.temperature, step.batch.positions)[:, None, None].to(x.dtype)
        return own * factors, turned * factors

    def _turned(self, heads: Tensor, step: ReferenceStep) -> Tensor:
        return heads if self.part.rope is None else rotate(heads, step.angles[self.part.rope])


def is_fresh(step: ReferenceStep, x: Tensor) -> bool:
    """Whether the step has only long sequences at their beginning, with any order of sums allowed and rows stored
    exactly.
    """
    batch, exact = step.batch, step.attention.pool.dtype == x.dtype and cpu_kernels.most_numbers != math.inf
    return (
        x.device.type == "cpu" and exact and min(batch.query_lens) >= FRESH and batch.query_lens == batch.context_lens
    )


def _by_head(part: LatentAttentionSpec, up: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The projection to keys [heads, dim, rank], and the one to values [heads, value_dim, rank]."""
    if len(up) == 2:
        return up[0].view(part.heads, part.rank, part.dim).transpose(1, 2), up[1].view(
            part.heads, part.value_dim, part.rank
        )
    keys, values = up[0].view(part.heads, -1, part.rank).split_with_sizes((part.dim, part.value_dim), 1)
    return keys, values
