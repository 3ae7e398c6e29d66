"""Layers of a step of one row: its products by the kernels of `one_row`, with as much as possible folded into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..kernels import one_row
from ..kernels.activation import activate
from ..kernels.few_bits_packed import Packed
from ..kernels.join import NormWeights
from ..layers.linear import Linear
from ..quantization import FewBitsLinear, Fp8Linear
from .experts import ExpertsPart
from .feedforward import GatedPart, PlainPart
from .gpu_layers import FusedLayer, LawLayer, MixerByLaw, Step
from .joins import Pending, RmsJoin

KINDS = (Linear, Fp8Linear)  # of products; not of a subclass
Read = tuple[Tensor | Packed, Tensor | None]


@dataclass(frozen=True, slots=True)
class LoneLayer:
    """The products one by one, additions and norms between them. See `FusedLayer`."""

    layer: FusedLayer

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        layer, block, overlap = self.layer, self.layer.block, one_row.overlaps(x.device)
        y = layer.entry(x, delta, overlap)
        mixed = times(block.attention.output, _mixed(layer, y, None, step))
        if block.layer.norms.parallel:
            return x, (mixed, _fed(layer, layer.middle(x, None, overlap), step))
        return x, _fed(layer, layer.middle(x, mixed, overlap), step)

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self.layer.write(x, delta, step)


@dataclass(frozen=True, slots=True)
class FoldedLayer:
    """The usual layer: its RMS norms are folded into the products behind them, its additions into those before."""

    layer: FusedLayer
    before_mixer: NormWeights
    before_ffn: NormWeights

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """x has then all that the layer adds."""
        layer, block = self.layer, self.layer.block
        if delta is not None:
            layer.settle(x, delta)
        output = block.attention.output
        mixed = _mixed(layer, x, self.before_mixer, step)
        _add(x, output, mixed)
        if layer.experts is not None:
            return layer.experts.add(x, self.before_ffn, step.batch.slots, one_row.overlaps(x.device)), None
        _add(x, block.dense.down, _inner(block.dense, x, self.before_ffn))
        return x, None

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self.layer.write(x, delta, step)


AnyLayer = FusedLayer | MixerByLaw | LawLayer | LoneLayer | FoldedLayer


def alone(layer: FusedLayer | MixerByLaw | LawLayer) -> AnyLayer:
    """What computes a single row of the layer."""
    if not isinstance(layer, FusedLayer) or not _takes_one_row(layer):
        return layer
    entry, middle = layer.entry, layer.middle
    if folds(layer):
        return FoldedLayer(layer, cast(RmsJoin, entry).before, cast(RmsJoin, middle).before)
    return LoneLayer(layer)


def _takes_one_row(layer: FusedLayer) -> bool:
    """Experts have kernels of their own for it."""
    products = layer.block.attention.products() if layer.experts else layer.block.products()
    return all(lone(getattr(*place)) for place in products) and not (layer.experts and layer.experts.fixed)


def folds(layer: FusedLayer) -> bool:
    """Whether nothing but RMS norms and additions stands between its products, and an activation with a gate."""
    part, block = layer.block.layer, layer.block
    behind = block.after_mixer or block.after_ffn or part.norms.parallel or part.branch != 1 or part.scalar
    return isinstance(layer.entry, RmsJoin) and isinstance(layer.middle, RmsJoin) and isinstance(block.ffn, GatedPart | ExpertsPart) and not behind


def _fed(layer: FusedLayer, y: Tensor, step: Step) -> Tensor:
    """What the feedforward network adds, of y [1, hidden], normed."""
    if layer.experts is not None:
        return layer.experts(y, step.batch.slots, overlap=one_row.overlaps(y.device))
    return times(layer.block.dense.down, _inner(layer.block.dense, y, None))


def lone(product: Linear) -> bool:
    """Whether there is a kernel for one row of this product."""
    return type(product) in KINDS or (isinstance(product, FewBitsLinear) and product.folds and one_row.takes(product.packed))


def times(product: Linear, y: Tensor, norm: NormWeights | None = None) -> Tensor:
    """norm(y) [1, in] -> [1, out]"""
    weight, scale = read(product)
    if norm is None:
        return one_row.linear(y, weight, product.bias, weight_scale=scale)
    return one_row.norm_linear(y, norm.weight, norm.eps, weight, product.bias, weight_scale=scale)


def read(product: Linear) -> Read:
    """The weight as the kernels read it, and the scales that it has besides."""
    if not isinstance(product, FewBitsLinear):
        return product.weight, product.scale
    packed = product.packed
    return (packed.words, packed.outer) if one_row.numbers(packed) else (packed, None)


def _add(x: Tensor, product: Linear, y: Tensor) -> None:
    weight, scale = read(product)
    one_row.linear_add(y, weight, x, product.bias, weight_scale=scale)


def _mixed(layer: FusedLayer, x: Tensor, norm: NormWeights | None, step: Step) -> Tensor:
    """What attention mixes of the norm of x, [1, query heads * head_dim]."""
    q = _query(layer, x, norm, step)
    mixed = step.attention.attend(q, q, q, layer.block.index, step.batch, *layer.sinks)  # one row reads the pool only
    return mixed.view(1, -1)


def _query(layer: FusedLayer, x: Tensor, norm: NormWeights | None, step: Step) -> Tensor:
    """x's keys and values are written; the queries of x."""
    mixer, batch, index = layer.block.attention, step.batch, layer.block.index
    qkv, part = mixer.qkv, mixer.part
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    by_itself = layer.head_norm or part.clip or part.temperature or part.value_norm_eps is not None or not mixer.heads[1]
    if by_itself or layer.table is None:
        return layer.rotate(times(qkv, x, norm), step)
    stored, scale = read(qkv)
    return one_row.qkv_rotate_store(
        x, weight, eps, stored, qkv.bias, *mixer.heads, layer.table, batch.positions, batch.slots,
        step.keys[index], step.values[index], *step.scales[index], weight_scale=scale,
    )  # fmt: skip


def _inner(ffn: GatedPart | PlainPart, x: Tensor, norm: NormWeights | None) -> Tensor:
    """norm(x) [1, hidden] -> [1, inner], what `down` takes; a plain network has no norm here."""
    if isinstance(ffn, PlainPart):
        return activate(times(ffn.up, x), ffn.part.activation)
    gate_up, weight, eps = ffn.gate_up, None if norm is None else norm.weight, 0.0 if norm is None else norm.eps
    stored, scale = read(gate_up)
    return one_row.gate_up(x, weight, eps, stored, gate_up.bias, weight_scale=scale, name=ffn.part.activation)
