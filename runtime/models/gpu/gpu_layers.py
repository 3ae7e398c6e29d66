"""Layers as a GPU runs them: Triton's kernels between the matrix products, or the law where these do not suit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..cache.states import StateMemory
from ..kernels.gates import times_sigmoid
from ..kernels.heads import HeadWeights, rotate_and_store
from ..kernels.join import NormWeights
from ..kernels.overlap import overlaps
from ..layers.rotary import Rope, Rotary
from ..step.batch import Batch
from .attention import temperatures
from .block import Block
from .experts import ExpertsPart
from .gpu_experts import FusedExperts
from .gpu_feedforward import inner_of
from .gpu_states import StateMixer, mixer_of
from .joins import AnyJoin, Pending, between, exact_in, weights_of, within
from .mixer import Step as LawStep
from .over_ranks import Unsummed, pending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..layers.float8 import Scales


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of a step share.

    keys, values: the pool by layer, [slots, kv_heads, head_dim] each.  scales: what they are divided by, by layer.
    law, own: what layers by the law need: see `attention.Step`, and `OwnEmbeddings`.  memory: of the states, where layers keep some.
    """

    batch: Batch
    attention: AttentionBackend
    keys: Sequence[Tensor] | Mapping[int, Tensor]
    values: Sequence[Tensor] | Mapping[int, Tensor]
    scales: Sequence[Scales] | Mapping[int, Scales]
    law: LawStep | None = None
    own: Sequence[Tensor | None] = ()
    memory: StateMemory | None = None


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """What was decided of a layer once, when its weights were there.

    entry: from what comes before to the mixer.  settle: the same, without the mixer's norm.
    middle: from the mixer to the feedforward network; in a parallel layer the norm of the latter alone.
    table: of the rotation's angles; None: nothing turns.  sinks: what attention takes besides.
    experts: None: the feedforward network is dense.
    """

    block: Block
    entry: AnyJoin
    settle: AnyJoin
    middle: AnyJoin
    table: Tensor | None
    head_norm: HeadWeights | None
    sinks: tuple[Tensor, ...]
    experts: FusedExperts | None

    @classmethod
    def of(cls, block: Block, behind: Block | None, rotaries: dict[Rope, Rotary], dtype: torch.dtype) -> FusedLayer:
        """behind: the layer before; None: the embeddings, or a layer that leaves nothing to be added."""
        mixer, before = block.attention, weights_of(block.before_mixer, dtype)
        return cls(
            block, between(behind, before, dtype), between(behind, None, dtype), middle_of(block, before, dtype),
            None if mixer.part.rope is None else rotaries[mixer.part.rope].table, _head_weights(block, dtype),
            () if mixer.sinks is None else (mixer.sinks,), FusedExperts.of(block.ffn) if isinstance(block.ffn, ExpertsPart) else None,
        )  # fmt: skip

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """x += delta and what attention adds; gives x and what is still to be added, of `rows` only if given."""
        mixed, slots = self.attend(x, delta, step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, self.mix(x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        """x += delta; x's keys and values are written, and nothing else is wanted."""
        self.queries(x, delta, step)

    def attend(self, x: Tensor, delta: Pending, step: Step) -> Tensor:
        """x += delta; returns what attention mixes of x, [T, query heads * head_dim]."""
        return self.mixed_of(*self.queries(x, delta, step), step)

    def mixed_of(self, qkv: Tensor, q: Tensor, step: Step) -> Tensor:
        """What attention mixes for queries q, of all heads qkv [T, ...] as they were projected."""
        mixer = self.block.attention
        queries, keys = mixer.heads
        k = v = None
        if keys:
            _, k, v, _ = qkv.view(len(qkv), -1, mixer.part.dim).tensor_split((queries, queries + keys, queries + 2 * keys), 1)
        mixed = step.attention.attend(q, k, v, self.block.index, step.batch, *self.sinks).view(len(qkv), -1)
        return self.gated(mixed, qkv)

    def gated(self, mixed: Tensor, qkv: Tensor, overlap: bool = False) -> Tensor:
        """What attention mixed, times the sigmoids of the gates that were projected behind the heads, if there are any."""
        gates = self.block.attention.part.gates
        return times_sigmoid(mixed, qkv[:, -gates:], overlap) if gates else mixed

    def queries(self, x: Tensor, delta: Pending, step: Step, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x += delta, then x's keys and values are written; all heads of x, and the queries (in `out`, or among them)."""
        overlap = overlaps(x.device)
        qkv = self.block.attention.qkv(self.entry(x, delta, overlap))
        return qkv, self.rotate(qkv, step, out, overlap)

    def rotate(self, qkv: Tensor, step: Step, out: Tensor | None = None, overlap: bool = False) -> Tensor:
        """What happens to the heads between their projection and attention. Returns the queries. overlap: see `overlap`."""
        mixer, index, batch = self.block.attention, self.block.index, step.batch
        part = mixer.part
        if part.clip is not None:
            qkv.clamp_(-part.clip, part.clip)
        q = rotate_and_store(
            qkv, *mixer.heads, self.table, batch.positions, step.attention.slots(index, batch), step.keys[index], step.values[index],
            self.head_norm, *step.scales[index], out, part.value_norm_eps, overlap,
        )  # fmt: skip
        if part.temperature is not None:
            q.mul_(temperatures(part.temperature, batch.positions)[:, None, None].to(q.dtype))
        return q

    def mix(self, x: Tensor, mixed: Tensor, slots: Tensor) -> Pending:
        """x += the projection of what attention mixed; returns what the feedforward network adds. slots: of the rows of x."""
        return behind_mixer(self, x, mixed, slots)


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A layer whose mixer keeps states. See `FusedLayer`."""

    block: Block
    entry: AnyJoin
    settle: AnyJoin
    middle: AnyJoin
    experts: FusedExperts | None
    mixer: StateMixer

    @classmethod
    def of(cls, block: Block, behind: Block | None, dtype: torch.dtype) -> StateLayer:
        before = weights_of(block.before_mixer, dtype)
        experts = FusedExperts.of(block.ffn) if isinstance(block.ffn, ExpertsPart) else None
        entry, settle = between(behind, before, dtype), between(behind, None, dtype)
        return cls(block, entry, settle, middle_of(block, before, dtype), experts, mixer_of(block))

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        mixed, slots = self.mixer(self.entry(x, delta, overlaps(x.device)), step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, behind_mixer(self, x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self.mixer(self.entry(x, delta), step)


@dataclass(frozen=True, slots=True)
class MixerByLaw:
    """A layer whose mixer torch's operations compute, and the kernels what stands around it. refusal: of the mixer.  See `FusedLayer`."""

    block: Block
    entry: AnyJoin
    middle: AnyJoin
    experts: FusedExperts | None
    refusal: str

    @classmethod
    def of(cls, block: Block, behind: Block | None, refusal: str, dtype: torch.dtype) -> MixerByLaw:
        before = weights_of(block.before_mixer, dtype)
        experts = FusedExperts.of(block.ffn) if isinstance(block.ffn, ExpertsPart) else None
        return cls(block, between(behind, before, dtype), middle_of(block, before, dtype), experts, refusal)

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        mixed, slots = self._mixed(x, delta, step), step.batch.slots
        if rows is not None:
            x, mixed, slots = (part.index_select(0, rows) for part in (x, mixed, slots))
        return x, behind_mixer(self, x, mixed, slots)

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self._mixed(x, delta, step)

    def _mixed(self, x: Tensor, delta: Pending, step: Step) -> Tensor:
        """x += delta; what the mixer's projection takes."""
        assert step.law is not None and self.block.mixer is not None
        return self.block.mixer.attend(self.entry(x, delta), step.law)


class Around(Protocol):
    """What stands around a layer's mixer. See `FusedLayer`."""

    @property
    def block(self) -> Block: ...

    @property
    def middle(self) -> AnyJoin: ...

    @property
    def experts(self) -> FusedExperts | None: ...


def behind_mixer(layer: Around, x: Tensor, mixed: Tensor, slots: Tensor) -> Pending:
    """x += the projection of what the mixer mixed; returns what the feedforward network adds."""
    block = layer.block
    assert block.mixer is not None and block.mixer.output is not None
    overlap = overlaps(x.device)
    if block.layer.norms.parallel:
        return pending(block.mixer.output, mixed), _fed(layer, layer.middle(x, None, overlap), slots)
    y = layer.middle(x, pending(block.mixer.output, mixed), overlap)
    return _fed(layer, y, slots) if layer.experts is None else layer.experts.spread(y, slots, overlap=overlap)


def _fed(layer: Around, y: Tensor, slots: Tensor) -> Tensor | Unsummed:
    if layer.experts is not None:
        return layer.experts(y, slots, overlap=overlaps(y.device))
    dense = layer.block.dense
    return pending(dense.down, inner_of(dense, y))


@dataclass(frozen=True, slots=True)
class LawLayer:
    """A layer that torch's operations compute. refusal: why, for people.  settle: from what comes before, without a norm."""

    block: Block
    settle: AnyJoin
    refusal: str

    @classmethod
    def of(cls, block: Block, behind: Block | None, refusal: str, dtype: torch.dtype) -> LawLayer:
        return cls(block, between(behind, None, dtype), refusal)

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        assert step.law is not None
        return self.block.forward(self.settle(x, delta), step.law, rows, step.own[self.block.index]), None

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        assert step.law is not None
        self.block.store(self.settle(x, delta), step.law)


def middle_of(block: Block, before_mixer: NormWeights | None, dtype: torch.dtype) -> AnyJoin:
    before = weights_of(block.before_ffn, dtype)
    if block.layer.norms.parallel:
        return between(None, before or before_mixer, dtype)
    return within(block, before, dtype)


def _head_weights(block: Block, dtype: torch.dtype) -> HeadWeights | None:
    norm = block.attention.norm
    if norm is None:
        return None
    part, bias = norm.part, None if norm.bias is None else norm.bias.contiguous()
    return HeadWeights(
        exact_in(norm.weight.contiguous(), dtype), norm.eps, bias, part.norm.kind == "layer", part.over == "all", part.after,
        torch.zeros(len(norm.weight), dtype=torch.int32, device=norm.weight.device),
    )  # fmt: skip
