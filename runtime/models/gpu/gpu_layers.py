"""Layers as a GPU runs them: Triton kernels between the matrix products, or the reference where these do not support
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.attention.qk_norm_rope_store import QkNormWeights, norm_rope_store
from ...kernels.launch.programmatic_launch import overlaps
from ...kernels.recurrent.output_gates import times_sigmoid
from ...kernels.residual_norm import NormWeights
from ...layers.rope_parameters import RopeParameters
from ...layers.rotary_embedding import RotaryEmbedding
from ..reference.reference_attention import temperatures
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_experts import ReferenceExperts
from ..reference.tensor_parallel_linear import PartialSum, pending_sum
from .gpu_feedforward import inner_of
from .gpu_fused_experts import FusedExperts
from .gpu_layer_executor import GpuStep
from .gpu_recurrent import FusedRecurrentMixer, mixer_of
from .gpu_residual_norm import AnyJoin, Pending, between, exact_in, weights_of, within


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The decisions about a layer, made once its weights are loaded.

    entry: from the previous layer's output to the mixer.  settle: the same, without the mixer's norm.
    middle: from the mixer to the feedforward network; in a parallel layer only the norm of the latter.
    table: of the rotation's angles; None: nothing is rotated.  sinks: learned attention sinks.
    experts: None: the feedforward network is dense.
    """

    block: ReferenceBlock
    entry: AnyJoin
    settle: AnyJoin
    middle: AnyJoin
    table: Tensor | None
    head_norm: QkNormWeights | None
    sinks: tuple[Tensor, ...]
    experts: FusedExperts | None

    @classmethod
    def of(
        cls,
        block: ReferenceBlock,
        previous: ReferenceBlock | None,
        rotaries: dict[RopeParameters, RotaryEmbedding],
        dtype: torch.dtype,
    ) -> FusedLayer:
        """previous: the layer before; None: the embeddings, or a layer that leaves nothing to be added."""
        mixer, before = block.attention, weights_of(block.before_mixer, dtype)
        return cls(
            block,
            between(previous, before, dtype),
            between(previous, None, dtype),
            middle_of(block, before, dtype),
            None if mixer.part.rope is None else rotaries[mixer.part.rope].table,
            _head_weights(block, dtype),
            () if mixer.sinks is None else (mixer.sinks,),
            FusedExperts.of(block.ffn) if isinstance(block.ffn, ReferenceExperts) else None,
        )

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """x += delta and what attention adds; returns x and what is still to be added, of `rows` only if given."""
        mixed, slots = self.attend(x, delta, step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, self.mix(x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        """x += delta; only x's keys and values are written."""
        self.queries(x, delta, step)

    def attend(self, x: Tensor, delta: Pending, step: GpuStep) -> Tensor:
        """x += delta; returns the attention output of x, [T, query heads * head_dim]."""
        return self.mixed_of(*self.queries(x, delta, step), step)

    def mixed_of(self, qkv: Tensor, q: Tensor, step: GpuStep) -> Tensor:
        """The attention output of queries q, of all heads qkv [T, ...] as they were projected."""
        mixer = self.block.attention
        queries, keys = mixer.heads
        k = v = None
        if keys:
            _, k, v, _ = qkv.view(len(qkv), -1, mixer.part.dim).tensor_split(
                (queries, queries + keys, queries + 2 * keys), 1
            )
        mixed = step.attention.attend(q, k, v, self.block.index, step.batch, *self.sinks).view(len(qkv), -1)
        return self.gated(mixed, qkv)

    def gated(self, mixed: Tensor, qkv: Tensor, overlap: bool = False) -> Tensor:
        """The attention output times the sigmoids of the gates that were projected after the heads, if there are
        any.
        """
        gates = self.block.attention.part.gates
        return times_sigmoid(mixed, qkv[:, -gates:], overlap) if gates else mixed

    def queries(self, x: Tensor, delta: Pending, step: GpuStep, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x += delta, then writes x's keys and values.

        Returns all heads of x, and the queries (in `out`, or among them).
        """
        overlap = overlaps(x.device)
        qkv = self.block.attention.qkv(self.entry(x, delta, overlap))
        return qkv, self.rotate(qkv, step, out, overlap)

    def rotate(self, qkv: Tensor, step: GpuStep, out: Tensor | None = None, overlap: bool = False) -> Tensor:
        """The operations on heads between their projection and attention.

        Returns the queries. overlap: see `overlap`.
        """
        mixer, index, batch = self.block.attention, self.block.index, step.batch
        part = mixer.part
        if part.clip is not None:
            qkv.clamp_(-part.clip, part.clip)
        q = norm_rope_store(
            qkv,
            *mixer.heads,
            self.table,
            batch.positions,
            step.attention.slots(index, batch),
            step.keys[index],
            step.values[index],
            self.head_norm,
            *step.scales[index],
            out,
            part.value_norm_eps,
            overlap,
        )
        if part.temperature is not None:
            q.mul_(temperatures(part.temperature, batch.positions)[:, None, None].to(q.dtype))
        return q

    def mix(self, x: Tensor, mixed: Tensor, slots: Tensor) -> Pending:
        """x += the projection of the attention output; returns the feedforward network's output.

        slots: of the rows of x.
        """
        return run_after_mixer(self, x, mixed, slots)


@dataclass(frozen=True, slots=True)
class FusedRecurrentLayer:
    """A layer whose mixer keeps states. See `FusedLayer`."""

    block: ReferenceBlock
    entry: AnyJoin
    settle: AnyJoin
    middle: AnyJoin
    experts: FusedExperts | None
    mixer: FusedRecurrentMixer

    @classmethod
    def of(cls, block: ReferenceBlock, previous: ReferenceBlock | None, dtype: torch.dtype) -> FusedRecurrentLayer:
        before = weights_of(block.before_mixer, dtype)
        experts = FusedExperts.of(block.ffn) if isinstance(block.ffn, ReferenceExperts) else None
        entry, settle = between(previous, before, dtype), between(previous, None, dtype)
        return cls(block, entry, settle, middle_of(block, before, dtype), experts, mixer_of(block))

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        mixed, slots = self.mixer(self.entry(x, delta, overlaps(x.device)), step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, run_after_mixer(self, x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        self.mixer(self.entry(x, delta), step)


@dataclass(frozen=True, slots=True)
class ReferenceMixerLayer:
    """A layer whose mixer runs in torch, and the parts around it in kernels.

    refusal: of the mixer.  See `FusedLayer`.
    """

    block: ReferenceBlock
    entry: AnyJoin
    middle: AnyJoin
    experts: FusedExperts | None
    refusal: str

    @classmethod
    def of(
        cls, block: ReferenceBlock, previous: ReferenceBlock | None, refusal: str, dtype: torch.dtype
    ) -> ReferenceMixerLayer:
        before = weights_of(block.before_mixer, dtype)
        experts = FusedExperts.of(block.ffn) if isinstance(block.ffn, ReferenceExperts) else None
        return cls(block, between(previous, before, dtype), middle_of(block, before, dtype), experts, refusal)

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        mixed, slots = self._mixed(x, delta, step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, run_after_mixer(self, x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        self._mixed(x, delta, step)

    def _mixed(self, x: Tensor, delta: Pending, step: GpuStep) -> Tensor:
        """x += delta; returns the input of the mixer's projection."""
        assert step.reference is not None and self.block.mixer is not None
        return self.block.mixer.attend(self.entry(x, delta), step.reference)


class LayerAroundMixer(Protocol):
    """The parts around a layer's mixer. See `FusedLayer`."""

    @property
    def block(self) -> ReferenceBlock: ...

    @property
    def middle(self) -> AnyJoin: ...

    @property
    def experts(self) -> FusedExperts | None: ...


def run_after_mixer(layer: LayerAroundMixer, x: Tensor, mixed: Tensor, slots: Tensor) -> Pending:
    """x += the projection of the mixer's output; returns what the feedforward network adds."""
    block = layer.block
    assert block.mixer is not None and block.mixer.output is not None
    overlap = overlaps(x.device)
    if block.layer.norms.parallel:
        return pending_sum(block.mixer.output, mixed), _fed(layer, layer.middle(x, None, overlap), slots)
    y = layer.middle(x, pending_sum(block.mixer.output, mixed), overlap)
    return _fed(layer, y, slots) if layer.experts is None else layer.experts.unreduced(y, slots, overlap=overlap)


def _fed(layer: LayerAroundMixer, y: Tensor, slots: Tensor) -> Tensor | PartialSum:
    if layer.experts is not None:
        return layer.experts(y, slots, overlap=overlaps(y.device))
    dense = layer.block.dense
    return pending_sum(dense.down, inner_of(dense, y))


@dataclass(frozen=True, slots=True)
class ReferenceLayer:
    """A layer that torch computes.

    refusal: why, for people.  settle: from the previous layer's output, without a norm.
    """

    block: ReferenceBlock
    settle: AnyJoin
    refusal: str

    @classmethod
    def of(
        cls, block: ReferenceBlock, previous: ReferenceBlock | None, refusal: str, dtype: torch.dtype
    ) -> ReferenceLayer:
        return cls(block, between(previous, None, dtype), refusal)

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        assert step.reference is not None
        return self.block.forward(self.settle(x, delta), step.reference, rows, step.own[self.block.index]), None

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        assert step.reference is not None
        self.block.store(self.settle(x, delta), step.reference)


def middle_of(block: ReferenceBlock, before_mixer: NormWeights | None, dtype: torch.dtype) -> AnyJoin:
    before = weights_of(block.before_ffn, dtype)
    if block.layer.norms.parallel:
        return between(None, before or before_mixer, dtype)
    return within(block, before, dtype)


def _head_weights(block: ReferenceBlock, dtype: torch.dtype) -> QkNormWeights | None:
    norm = block.attention.norm
    if norm is None:
        return None
    part, bias = norm.part, None if norm.bias is None else norm.bias.contiguous()
    return QkNormWeights(
        exact_in(norm.weight.contiguous(), dtype),
        norm.eps,
        bias,
        part.norm.kind == "layer",
        part.over == "all",
        part.after,
        torch.zeros(len(norm.weight), dtype=torch.int32, device=norm.weight.device),
    )
