"""Layers of a step of few rows whose weights are in few bits: additions, norms and activations are folded into their products.

A product that ends a branch adds it to x, and leaves x times the weight of the norm behind it, with the squares that the norm
divides by; the product behind that norm divides when its sums are done, since every input of a row is divided by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..kernels import few_rows_parts
from ..kernels.few_bits import Readied, matmul
from ..kernels.few_bits_packed import Packed
from ..kernels.few_rows_parts import Heads
from ..kernels.join import NormWeights
from ..kernels.overlap import overlaps
from ..layers.linear import Linear
from ..quantization import FewBitsLinear, Fp8Linear
from .feedforward import GatedPart
from .gpu_layers import FusedLayer, Step
from .joins import Pending, RmsJoin
from .lone_layers import GpuLayer, folds

if TYPE_CHECKING:
    from .embedding import Head

MOST_ROWS = 64
DTYPE = torch.bfloat16  # x times a norm's weight has its range


@dataclass(frozen=True, slots=True)
class FewRowsLayer:
    """behind: the norm in front of the next layer, or of the head; None: x is left as it is.

    turns: nothing but the rotation happens to heads between their projection and attention.
    """

    layer: FusedLayer
    before_ffn: NormWeights
    behind: NormWeights | None
    turns: bool

    def run(self, x: Tensor, delta: Pending, step: Step, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """x has then all that the layer adds."""
        block, overlap = self.layer.block, overlaps(x.device)
        mixed = self._mixed(x, delta, step)
        if rows is not None:
            x, mixed = x.index_select(0, rows), mixed.index_select(0, rows)
        y = _times(block.attention.output, mixed, overlap, x, self.before_ffn)
        ffn = cast(GatedPart, block.dense)
        inner = cast(Tensor, _times(ffn.gate_up, y, overlap, name=ffn.part.activation))
        readied = _times(ffn.down, inner, overlap, x, self.behind)
        return x, readied if isinstance(readied, Readied) else None

    def write(self, x: Tensor, delta: Pending, step: Step) -> None:
        self._queries(x, delta, step)

    def _mixed(self, x: Tensor, delta: Pending, step: Step) -> Tensor:
        """What attention mixes of x, [T, query heads * head_dim]."""
        qkv, q = self._queries(x, delta, step)
        if qkv is not None:
            return self.layer.mixed_of(qkv, q, step)
        return step.attention.attend(q, None, None, self.layer.block.index, step.batch, *self.layer.sinks).view(len(q), -1)

    def _queries(self, x: Tensor, delta: Pending, step: Step) -> tuple[Tensor | None, Tensor]:
        """All heads, where the product does not turn and store them itself; and the queries."""
        y, overlap = delta if isinstance(delta, Readied) else self.layer.entry(x, delta), overlaps(x.device)
        qkv = self.layer.block.attention.qkv
        if self.turns and few_rows_parts.suits(y.y if isinstance(y, Readied) else y, packed_of(qkv)):
            return None, few_rows_parts.qkv_rotate_store(y, packed_of(qkv), qkv.bias, self._heads(step), overlap=overlap)
        heads = cast(Tensor, _times(qkv, y, overlap))
        return heads, self.layer.rotate(heads, step, overlap=overlap)

    def _heads(self, step: Step) -> Heads:
        layer, batch, index = self.layer, step.batch, self.layer.block.index
        slots, table = step.attention.slots(index, batch), cast(Tensor, layer.table)
        return Heads(*layer.block.attention.heads, table, batch.positions, slots, step.keys[index], step.values[index], *step.scales[index])


def few_rows(layers: Sequence[GpuLayer], last_norm: NormWeights | None, head: Head, dtype: torch.dtype) -> tuple[FewRowsLayer, ...] | None:
    """The layers of a step of up to MOST_ROWS rows; None: some have parts that are not folded, or weights that are not in few bits."""
    if dtype != DTYPE or not all(isinstance(layer, FusedLayer) and folds(layer) and _in_few_bits(layer) for layer in layers):
        return None
    fused = cast(Sequence[FusedLayer], layers)
    behind = [cast(RmsJoin, layer.entry).before for layer in fused[1:]]
    last = last_norm if _takes_readied(head) else None
    return tuple(
        FewRowsLayer(layer, cast(RmsJoin, layer.middle).before, norm, _turns(layer)) for layer, norm in zip(fused, [*behind, last], strict=True)
    )


def _turns(layer: FusedLayer) -> bool:
    part = layer.block.attention.part
    more = layer.head_norm or part.clip or part.temperature or part.value_norm_eps is not None or part.gates
    return not more and layer.table is not None and bool(layer.block.attention.heads[1])


def of_head(head: Head, y: Readied) -> Tensor:
    """The logits [T, vocabulary]."""
    return cast(Tensor, _times(head.product, y, overlaps(y.y.device)))


def _takes_readied(head: Head) -> bool:
    return readable(head.product) and head.project is None


def _in_few_bits(layer: FusedLayer) -> bool:
    return all(readable(getattr(*place)) for place in layer.block.products())


def readable(product: Linear) -> bool:
    """Whether the kernels that fold read its weight."""
    return type(product) is Fp8Linear or (isinstance(product, FewBitsLinear) and product.folds)


def _times(
    product: Linear, y: Tensor | Readied, overlap: bool, added_to: Tensor | None = None, norm: NormWeights | None = None, name: str = ""
) -> Tensor | Readied:
    ready = None if norm is None else (norm.weight, norm.eps)
    return matmul(y, packed_of(product), product.bias, added_to=added_to, ready=ready, name=name, overlap=overlap)


def packed_of(product: Linear) -> Packed:
    """Of one that is readable."""
    return cast(FewBitsLinear | Fp8Linear, product).packed


__all__ = ["MOST_ROWS", "FewRowsLayer", "few_rows", "of_head", "packed_of", "readable"]
