"""Projections with 4-bit and 8-bit weights on a GPU: small batches read a quarter or half of the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ..layers.linear_layers import Linear
from .gpu_weight_packing import pack_for_gpu
from .quantized_weight import QuantizedWeight

FEW_ROWS = 64  # up to which reading an 8-bit weight takes longer than multiplying with the dequantized one
STEP = 16  # bytes that rows of int8 must be a multiple of
FIXED_ROWS = 256  # that a product of fixed sums takes at a time


class GpuQuantizedLinear(Linear):
    """y = x W^T + b with quantized W (kernels/quantized/quantized_gemm.py); x stays as it is.

    Large batches dequantize the weight first, part by part.
    packed: the weight as the kernels read it.
    folds: whether small batches may use kernels that fuse the operations around a product.
    """

    __slots__ = ("_kernels", "packed")
    folds: ClassVar[bool] = True

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        """weight: one that `gpu_weight_packing` does not refuse; dtype: of what is multiplied, and of bias [out]."""
        from ..kernels.quantized import quantized_gemm

        self.packed, self._kernels = pack_for_gpu(weight, dtype), quantized_gemm
        super().__init__(self.packed.words, bias)

    def __call__(self, x: Tensor) -> Tensor:
        if self._kernels.dequantizes_first(len(x), self.packed):
            return self._kernels.multiply_dequantized(x, self.packed, self.bias)
        return self._kernels.product(x, self.packed, self.bias)

    def gates(self, x: Tensor) -> bool:
        """Whether `gated` is the way to an activation after the product of these rows."""
        return (
            type(self) is GpuQuantizedLinear and self.packed.order is None and self._kernels.fuses_gate(x, self.packed)
        )

    def gated(self, x: Tensor, name: str) -> Tensor:
        """activation(gate) * up of x [T, in], W holding gate above up: [T, out / 2]."""
        return self._kernels.product(x, self.packed, self.bias, name=name)

    def tensors(self) -> Iterator[Tensor]:
        yield from self.packed.tensors()
        if self.bias is not None:
            yield self.bias


class DeterministicGpuQuantizedLinear(GpuQuantizedLinear):
    """The same, batch-invariant: inputs are split alike for any number of rows."""

    __slots__ = ()
    folds = False

    def __call__(self, x: Tensor) -> Tensor:
        packed, kernels = self.packed, self._kernels
        tile = kernels.tile_for(1, packed.outputs, packed.inputs, packed.block, x.device)
        parts = [
            kernels.product(part, packed, self.bias, kernels.fitted(tile, len(part))) for part in x.split(FIXED_ROWS)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Int8ActivationLinear(GpuQuantizedLinear):
    """The same for int8 with a scale per output; more than FEW_ROWS rows are rounded to int8 too, each with its own
    scale.

    Their sums are exact, by the tensor cores' integers, at twice the rate of bfloat16.
    """

    __slots__ = ("_rows",)

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        from ..kernels.quantized import int8_gemm

        super().__init__(weight, bias, dtype)
        self._rows = int8_gemm

    @staticmethod
    def supports(weight: QuantizedWeight) -> bool:
        """Of a weight that `gpu_weight_packing` does not refuse."""
        plain = weight.table is None and weight.levels == 256 and weight.offset is None and weight.order is None
        around = not isinstance(weight.zero, Tensor) and weight.zero == 128
        return plain and around and weight.scale.shape[1] == 1 and weight.shape[1] % STEP == 0

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= FEW_ROWS:
            return super().__call__(x)
        assert self.packed.outer is not None
        return self._rows.product(x, self.packed.words, self.packed.outer, self.bias)
