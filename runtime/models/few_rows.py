"""Layers of a step of few rows: additions, norms and activations are folded into their products.

A product that ends a branch adds it to x, and leaves x times the weight of the norm behind it, with the squares that the norm
divides by; the product behind that norm divides when its sums are done, since every input of a row is divided by the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..kernels import few_rows_parts, one_row
from ..kernels.few_bits import Readied, matmul
from ..kernels.few_bits_packed import Packed
from ..kernels.few_rows_parts import Heads
from ..kernels.join import NormWeights
from ..layers.linear import Linear
from ..quantization import FewBitsLinear, Fp8Linear
from .feedforward import GatedPart
from .gpu_layers import FusedLayer, Step
from .joins import Pending, RmsJoin
from .lone_layers import GpuLayer, folds

if TYPE_CHECKING:
    from .embedding import Head

MOST_ROWS = 64
MOST_PLAIN = few_rows_parts.MOST_ROWS  # where all weights are plain: from there on cuBLAS reads them as fast
DTYPE = torch.bfloat16  # x times a norm's weight has its range
PLAIN = os.environ.get("SGL_FEW_ROWS_PLAIN") != "0"


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
        block, overlap = self.layer.block, one_row.overlaps(x.device)
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
        y, overlap = delta if isinstance(delta, Readied) else self.layer.entry(x, delta), one_row.overlaps(x.device)
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
    """The layers of a step of few rows, see `most_rows`; None: some have parts that are not folded, or weights that are neither all in few bits nor all plain."""
    if dtype != DTYPE or not all(isinstance(layer, FusedLayer) and folds(layer) for layer in layers):
        return None
    fused = cast(Sequence[FusedLayer], layers)
    suits = plain if _all(fused, plain) and PLAIN else readable
    if not _all(fused, suits):
        return None
    behind = [cast(RmsJoin, layer.entry).before for layer in fused[1:]]
    last = last_norm if suits(head.product) and head.project is None else None
    return tuple(
        FewRowsLayer(layer, cast(RmsJoin, layer.middle).before, norm, _turns(layer)) for layer, norm in zip(fused, [*behind, last], strict=True)
    )


def most_rows(layers: Sequence[FewRowsLayer]) -> int:
    """Of a step that they are to compute."""
    return MOST_PLAIN if plain(layers[0].layer.block.attention.output) else MOST_ROWS


def _all(layers: Sequence[FusedLayer], suits: Callable[[Linear], bool]) -> bool:
    return all(layer.experts is None and all(suits(getattr(*place)) for place in layer.block.products()) for layer in layers)


def _turns(layer: FusedLayer) -> bool:
    part = layer.block.attention.part
    more = layer.head_norm or part.clip or part.temperature or part.value_norm_eps is not None or part.gates
    return not more and layer.table is not None and bool(layer.block.attention.heads[1])


def of_head(head: Head, y: Readied) -> Tensor:
    """The logits [T, vocabulary]."""
    return cast(Tensor, _times(head.product, y, one_row.overlaps(y.y.device)))


def plain(product: Linear) -> bool:
    """Whether the kernels that fold read its weight as it lies."""
    return type(product) is Linear and product.weight.dtype == DTYPE and product.weight.is_contiguous() and few_rows_parts.takes(Packed.as_it_lies(product.weight))


def readable(product: Linear) -> bool:
    """Whether they read its weight in few bits."""
    return type(product) is Fp8Linear or (isinstance(product, FewBitsLinear) and product.folds)


def _times(
    product: Linear, y: Tensor | Readied, overlap: bool, added_to: Tensor | None = None, norm: NormWeights | None = None, name: str = ""
) -> Tensor | Readied:
    ready = None if norm is None else (norm.weight, norm.eps)
    return matmul(y, packed_of(product), product.bias, added_to=added_to, ready=ready, name=name, overlap=overlap)


def packed_of(product: Linear) -> Packed:
    """Of one that is readable, or plain."""
    return Packed.as_it_lies(product.weight) if type(product) is Linear else cast(FewBitsLinear | Fp8Linear, product).packed


__all__ = ["MOST_PLAIN", "MOST_ROWS", "FewRowsLayer", "few_rows", "most_rows", "of_head", "packed_of", "plain", "readable"]
