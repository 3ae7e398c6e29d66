"""Layers of a small batch with quantized weights: additions, norms and activations are fused into their products.

A product that ends a branch adds to x. It also writes x times the weight of the norm that follows, and the squares for
its divisor. The product after that norm divides when its sums are complete, since all inputs of a row have the same
divisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...kernels.launch.programmatic_launch import overlaps
from ...kernels.packed.packed_weight import PackedWeight
from ...kernels.quantized import split_k_gemm
from ...kernels.quantized.quantized_gemm import NormedInput, matmul
from ...kernels.quantized.split_k_gemm import QkvStoreArguments
from ...kernels.residual_norm import NormWeights
from ...layers.linear_layers import Linear
from ...quantization import Fp8Linear, GpuQuantizedLinear
from ..reference.reference_block import ReferenceBlock
from ..reference.reference_feedforward import ReferenceGatedFFN
from .gemv_layers import GpuLayer, can_fully_fuse
from .gpu_layer_executor import GpuStep
from .gpu_layers import FusedLayer
from .gpu_residual_norm import Pending, ResidualRmsNorm

if TYPE_CHECKING:
    from ..reference.reference_embedding import OutputHead

MOST_ROWS = 64
DTYPE = torch.bfloat16  # x times a norm's weight has its range


@dataclass(frozen=True, slots=True)
class SmallBatchLayer:
    """next_norm: the norm in front of the next layer, or of the head; None: x is left as it is.

    turns: heads are only rotated between their projection and attention.
    """

    layer: FusedLayer
    before_ffn: NormWeights
    next_norm: NormWeights | None
    turns: bool

    @property
    def block(self) -> ReferenceBlock:
        return self.layer.block

    def run(self, x: Tensor, delta: Pending, step: GpuStep, rows: Tensor | None = None) -> tuple[Tensor, Pending]:
        """Afterwards x includes all that the layer adds."""
        block, overlap = self.layer.block, overlaps(x.device)
        mixed = self._mixed(x, delta, step)
        if rows is not None:
            x, mixed = x.index_select(0, rows), mixed.index_select(0, rows)
        y = _times(block.attention.output, mixed, overlap, x, self.before_ffn)
        ffn = cast(ReferenceGatedFFN, block.dense)
        inner = cast(Tensor, _times(ffn.gate_up, y, overlap, name=ffn.part.activation))
        readied = _times(ffn.down, inner, overlap, x, self.next_norm)
        return x, readied if isinstance(readied, NormedInput) else None

    def write(self, x: Tensor, delta: Pending, step: GpuStep) -> None:
        self._queries(x, delta, step)

    def _mixed(self, x: Tensor, delta: Pending, step: GpuStep) -> Tensor:
        """The attention output of x, [T, query heads * head_dim]."""
        qkv, q = self._queries(x, delta, step)
        if qkv is not None:
            return self.layer.mixed_of(qkv, q, step)
        return step.attention.attend(q, None, None, self.layer.block.index, step.batch, *self.layer.sinks).view(
            len(q), -1
        )

    def _queries(self, x: Tensor, delta: Pending, step: GpuStep) -> tuple[Tensor | None, Tensor]:
        """All heads, if the product does not rotate and store them itself; and the queries."""
        y, overlap = delta if isinstance(delta, NormedInput) else self.layer.entry(x, delta), overlaps(x.device)
        qkv = self.layer.block.attention.qkv
        if self.turns and split_k_gemm.supports(y.y if isinstance(y, NormedInput) else y, packed_of(qkv)):
            return None, split_k_gemm.qkv_rope_store(y, packed_of(qkv), qkv.bias, self._heads(step), overlap=overlap)
        heads = cast(Tensor, _times(qkv, y, overlap))
        return heads, self.layer.rotate(heads, step, overlap=overlap)

    def _heads(self, step: GpuStep) -> QkvStoreArguments:
        layer, batch, index = self.layer, step.batch, self.layer.block.index
        slots, table = step.attention.slots(index, batch), cast(Tensor, layer.table)
        return QkvStoreArguments(
            *layer.block.attention.heads,
            table,
            batch.positions,
            slots,
            step.keys[index],
            step.values[index],
            *step.scales[index],
        )


def small_batch_layers(
    layers: Sequence[GpuLayer], last_norm: NormWeights | None, head: OutputHead, dtype: torch.dtype
) -> tuple[SmallBatchLayer, ...] | None:
    """The layers for steps of up to MOST_ROWS rows.

    None: some have parts that are not fused, or weights that are not quantized.
    """
    if dtype != DTYPE or not all(
        isinstance(layer, FusedLayer) and can_fully_fuse(layer) and _is_quantized(layer) for layer in layers
    ):
        return None
    fused = cast(Sequence[FusedLayer], layers)
    next_norms = [cast(ResidualRmsNorm, layer.entry).before for layer in fused[1:]]
    last = last_norm if _takes_normed_input(head) else None
    return tuple(
        SmallBatchLayer(layer, cast(ResidualRmsNorm, layer.middle).before, norm, _turns(layer))
        for layer, norm in zip(fused, [*next_norms, last], strict=True)
    )


def _turns(layer: FusedLayer) -> bool:
    part = layer.block.attention.part
    more = layer.head_norm or part.clip or part.temperature or part.value_norm_eps is not None or part.gates
    return not more and layer.table is not None and bool(layer.block.attention.heads[1])


def of_head(head: OutputHead, y: NormedInput) -> Tensor:
    """The logits [T, vocabulary]."""
    return cast(Tensor, _times(head.product, y, overlaps(y.y.device)))


def _takes_normed_input(head: OutputHead) -> bool:
    return supports_small_batch(head.product) and head.project is None


def _is_quantized(layer: FusedLayer) -> bool:
    return all(supports_small_batch(getattr(*place)) for place in layer.block.products())


def supports_small_batch(product: Linear) -> bool:
    """Whether the fusing kernels read its weight."""
    return type(product) is Fp8Linear or (isinstance(product, GpuQuantizedLinear) and product.folds)


def _times(
    product: Linear,
    y: Tensor | NormedInput,
    overlap: bool,
    added_to: Tensor | None = None,
    norm: NormWeights | None = None,
    name: str = "",
) -> Tensor | NormedInput:
    ready = None if norm is None else (norm.weight, norm.eps)
    return matmul(y, packed_of(product), product.bias, added_to=added_to, ready=ready, name=name, overlap=overlap)


def packed_of(product: Linear) -> PackedWeight:
    """Of one that is readable."""
    return cast(GpuQuantizedLinear | Fp8Linear, product).packed


__all__ = ["MOST_ROWS", "SmallBatchLayer", "of_head", "packed_of", "small_batch_layers", "supports_small_batch"]
