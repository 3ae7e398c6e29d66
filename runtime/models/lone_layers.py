"""Layers of a step of one row: its products by the kernels of `one_row`, with as much as possible folded into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..kernels import one_row
from ..kernels.activation import activate
from ..kernels.join import NormWeights
from ..layers.linear import Linear
from ..quantization import Fp8Linear
from .feedforward import GatedPart, PlainPart
from .gpu_layers import FusedLayer, LawLayer, Step
from .joins import Pending, RmsJoin

KINDS = (Linear, Fp8Linear)  # of products; not of a subclass


@dataclass(frozen=True, slots=True)
class LoneLayer:
    """The products one by one, additions and norms between them. See `FusedLayer`."""

    layer: FusedLayer

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        layer, block, overlap = self.layer, self.layer.block, one_row.overlaps(x.device)
        y = layer.entry(x, delta, overlap)
        mixed = times(block.mixer.output, _mixed(layer, y, None, step))
        if block.layer.norms.parallel:
            inner = _inner(block.dense, layer.middle(x, None, overlap), None)
            return x, (mixed, times(block.dense.down, inner))
        inner = _inner(block.dense, layer.middle(x, mixed, overlap), None)
        return x, times(block.dense.down, inner)

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
        output, down = block.mixer.output, block.dense.down
        mixed = _mixed(layer, x, self.before_mixer, step)
        one_row.linear_add(mixed, output.weight, x, output.bias, weight_scale=output.scale)
        y = _inner(block.dense, x, self.before_ffn)
        one_row.linear_add(y, down.weight, x, down.bias, weight_scale=down.scale)
        return x, None

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self.layer.write(x, delta, step)


AnyLayer = FusedLayer | LawLayer | LoneLayer | FoldedLayer


def alone(layer: FusedLayer | LawLayer) -> AnyLayer:
    """What computes a single row of the layer."""
    if isinstance(layer, LawLayer) or not all(type(getattr(*place)) in KINDS for place in layer.block.products()):
        return layer
    entry, middle = layer.entry, layer.middle
    if folds(layer):
        return FoldedLayer(layer, cast(RmsJoin, entry).before, cast(RmsJoin, middle).before)
    return LoneLayer(layer)


def folds(layer: FusedLayer) -> bool:
    """Whether nothing but RMS norms and additions stands between its products, and an activation with a gate."""
    part, block = layer.block.layer, layer.block
    behind = block.after_mixer or block.after_ffn or part.norms.parallel or part.branch != 1 or part.scalar
    return isinstance(layer.entry, RmsJoin) and isinstance(layer.middle, RmsJoin) and isinstance(block.dense, GatedPart) and not behind


def times(product: Linear, y: Tensor) -> Tensor:
    """y [1, in] -> [1, out]"""
    return one_row.linear(y, product.weight, product.bias, weight_scale=product.scale)


def _mixed(layer: FusedLayer, x: Tensor, norm: NormWeights | None, step: Step) -> Tensor:
    """What attention mixes of the norm of x, [1, query heads * head_dim]."""
    q = _query(layer, x, norm, step)
    mixed = step.attention.attend(q, q, q, layer.block.index, step.batch, *layer.sinks)  # one row reads the pool only
    return mixed.view(1, -1)


def _query(layer: FusedLayer, x: Tensor, norm: NormWeights | None, step: Step) -> Tensor:
    """x's keys and values are written; the queries of x."""
    mixer, batch, index = layer.block.mixer, step.batch, layer.block.index
    qkv, part = mixer.qkv, mixer.part
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    by_itself = layer.head_norm or part.clip or part.temperature or part.value_norm_eps is not None or not mixer.heads[1]
    if by_itself or layer.table is None:
        y = times(qkv, x) if norm is None else one_row.norm_linear(
            x, norm.weight, eps, qkv.weight, qkv.bias, weight_scale=qkv.scale
        )  # fmt: skip
        return layer.rotate(y, step)
    return one_row.qkv_rotate_store(
        x, weight, eps, qkv.weight, qkv.bias, *mixer.heads, layer.table, batch.positions, batch.slots,
        step.keys[index], step.values[index], *step.scales[index], weight_scale=qkv.scale,
    )  # fmt: skip


def _inner(ffn: GatedPart | PlainPart, x: Tensor, norm: NormWeights | None) -> Tensor:
    """norm(x) [1, hidden] -> [1, inner], what `down` takes; a plain network has no norm here."""
    if isinstance(ffn, PlainPart):
        return activate(times(ffn.up, x), ffn.part.activation)
    gate_up, weight, eps = ffn.gate_up, None if norm is None else norm.weight, 0.0 if norm is None else norm.eps
    return one_row.gate_up(
        x, weight, eps, gate_up.weight, gate_up.bias, weight_scale=gate_up.scale, name=ffn.part.activation
    )  # fmt: skip
