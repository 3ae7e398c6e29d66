"""Latent attention on a GPU: norm, rotation and store in one kernel between the products.

The reference is reference/reference_latent_attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...kernels.attention.latent_norm_rope_store import latent_norm_rope_store
from ...kernels.rms_norm import rms_norm
from ...layers.norm_layers import LayerNorm
from ...step.step_batch import StepBatch
from ..reference.reference_attention import temperatures
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_experts import ReferenceExperts
from ..reference.reference_latent_attention import ReferenceLatentAttention
from ..reference.tensor_parallel_linear import precomputed
from .gpu_fused_experts import FusedExperts
from .gpu_layer_executor import GpuStep
from .gpu_layers import middle_of, run_after_mixer
from .gpu_residual_norm import AnyJoin, Pending, between, exact_in, weights_of

if TYPE_CHECKING:
    from ...layers.rope_parameters import RopeParameters
    from ...layers.rotary_embedding import RotaryEmbedding


@dataclass(frozen=True, slots=True)
class FusedLatentAttention:
    """A sealed mixer as the kernels take it.

    norm: of latents; query_norm: of queries' latents; both in the model's type if that is exact.
    """

    part: ReferenceLatentAttention
    table: Tensor | None
    norm: Tensor
    query_norm: Tensor | None

    @classmethod
    def of(
        cls, part: ReferenceLatentAttention, rotaries: dict[RopeParameters, RotaryEmbedding], dtype: torch.dtype
    ) -> FusedLatentAttention:
        rope, few = part.part.rope, part.query_norm
        assert not isinstance(part.norm, LayerNorm)
        return cls(
            part,
            None if rope is None else rotaries[rope].table,
            exact_in(part.norm.weight, dtype),
            None if few is None else exact_in(few.weight, dtype),
        )

    def attend(self, x: Tensor, step: GpuStep) -> Tensor:
        """See `ReferenceLatentAttention.attend`."""
        own = step.batch.own
        if own is None:
            return self._mixed(*self._stored(x, x, 0, step), step, step.batch)
        mine = x[own.rows]
        made = self._stored(x, mine, own.rows.start, step)
        if own.batch is None:
            return torch.zeros_like(x)
        return precomputed(self.part.output).of_rows(self._mixed(*made, step, own.batch), own.rows, len(x))

    def _stored(self, x: Tensor, mine: Tensor, first: int, step: GpuStep) -> tuple[Tensor, Tensor]:
        """All rows of x are written.

        Returns the rows from `first` on of `mine`, the projected queries, and q [T, heads, rank + turned] with the
        rotated part.
        """
        own, spec, batch, index = self.part, self.part.part, step.batch, self.part.index
        query = own.query(self._query_latent(mine)) if len(mine) else mine.new_empty(0, own.query_width)
        q = x.new_empty(len(mine), spec.heads, spec.rank + spec.turned)
        latent_norm_rope_store(
            query,
            own.latent(x),
            self.norm,
            own.norm.eps,
            self.table,
            batch.positions,
            step.attention.slots(index, batch),
            step.keys[index],
            q,
            step.scales[index].k,
            first,
        )
        return query, q

    def _mixed(self, query: Tensor, q: Tensor, step: GpuStep, batch: StepBatch) -> Tensor:
        """The attention output of the batch's rows, [T, heads * value_dim]."""
        own, spec = self.part, self.part.part
        heads = query[:, : spec.heads * spec.dim].unflatten(1, (spec.heads, spec.dim))
        _by_head(heads, own.absorb.weight, q[..., : spec.rank])
        if spec.temperature is not None:
            q.mul_(temperatures(spec.temperature, batch.positions)[:, None, None].to(q.dtype))
        mixed = step.attention.attend(q, None, None, own.index, batch)
        out = q.new_empty(len(q), spec.heads, spec.value_dim)
        _by_head(mixed, own.expand.weight, out)
        return out.flatten(1)

    def _query_latent(self, x: Tensor) -> Tensor:
        down, norm = self.part.query_down, self.part.query_norm
        if down is None or norm is None or self.query_norm is None:
            return x
        return rms_norm(down(x), self.query_norm, norm.eps)


@dataclass(frozen=True, slots=True)
class FusedLatentLayer:
    """A layer with latent attention; see `FusedLayer`."""

    block: ReferenceBlock
    entry: AnyJoin
    middle: AnyJoin
    experts: FusedExperts | None
    mixer: FusedLatentAttention

    @classmethod
    def of(
        cls,
        block: ReferenceBlock,
        previous: ReferenceBlock | None,
        rotaries: dict[RopeParameters, RotaryEmbedding],
        dtype: torch.dtype,
    ) -> FusedLatentLayer:
        before = weights_of(block.before_mixer, dtype)
        experts = FusedExperts.of(block.ffn) if isinstance(block.ffn, ReferenceExperts) else None
        assert isinstance(block.mixer, ReferenceLatentAttention)
        return cls(
            block,
            between(previous, before, dtype),
            middle_of(block, before, dtype),
            experts,
            FusedLatentAttention.of(block.mixer, rotaries, dtype),
        )

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        mixed, slots = self.mixer.attend(self.entry(x, delta), step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, run_after_mixer(self, x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        self.mixer.attend(self.entry(x, delta), step)


def _by_head(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """out [T, heads, outputs] = x [T, heads, inputs] of each head times that head's weight [heads, inputs, outputs]."""
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
