"""Projections with float8 weights: half the bytes to read for small batches, twice the arithmetic rate for large
ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.packed.packed_weight import MOST_TILES, PackedWeight
from ..layers import float8_reference as values
from ..layers.float8_reference import FP8
from ..layers.linear_layers import Linear
from .gpu_quantized_linear import FEW_ROWS
from .gpu_weight_packing import of_float8

SHAPE_STEP = 16  # `torch._scaled_mm` takes sizes that are multiples of this


class Fp8Linear(Linear):
    """y = x W^T + b with W as float8 times a float32 scale per output.

    With more than FEW_ROWS rows, x is quantized to float8 too, each row with its own scale (compute capability 8.9).
    With fewer, the weight is dequantized in registers and x stays as it is (kernels/quantized/quantized_gemm.py; a
    decode step
    of one row: `gemv`). On the CPU, where nothing is gained, the definition of the case of many rows is computed.
    """

    __slots__ = ("_counters", "_kernels", "scale")
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        """weight: float8_e4m3fn [out, in]; scale: float32 [out]."""
        super().__init__(weight, bias)
        self.scale = scale
        self._kernels = _cuda_kernels() if weight.is_cuda else None
        self._counters = torch.zeros(MOST_TILES, dtype=torch.int32, device=weight.device)

    @property
    def packed(self) -> PackedWeight:
        """The weight in the form of the kernels for small batches."""
        return of_float8(self.weight, self.scale, self._counters)

    @classmethod
    def of(cls, layer: Linear, per_output: bool = True) -> Fp8Linear:
        """A loaded layer in float8; per_output=False takes one scale for the whole weight."""
        return cls(*values.quantize_weight(layer.weight, per_output), layer.bias)

    @staticmethod
    def supports(weight: Tensor) -> bool:
        """Whether the sizes of a weight [out, in] are ones that the device's product takes."""
        return not weight.is_cuda or all(size % SHAPE_STEP == 0 for size in weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        if self._kernels is None:
            return self._by_definition(x)
        if len(x) <= FEW_ROWS:
            return self._kernels.few_bits.product(x, self.packed, self.bias)
        return self._scaled(*self._kernels.quantize.quantize_rows(x))

    def _multiplied(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """x: float8 [T, in]; scale: float32 [T]."""
        return self._restored(x, scale, dtype) if self._kernels is None else self._scaled(x, scale)

    def _scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        """x: float8 [T, in]; scale: float32 [T]."""
        y = torch._scaled_mm(
            x, self.weight.t(), scale[:, None], self.scale[None, :], out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return y if self.bias is None else y.add_(self.bias)  # cuBLAS lacks the bias for few rows

    def _by_definition(self, x: Tensor) -> Tensor:
        return self._restored(*values.quantize_rows(x), x.dtype)

    def _restored(self, x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        y = (x.float() @ self.weight.float().t()) * scale[:, None] * self.scale
        return (y if self.bias is None else y + self.bias).to(dtype)


class RowwiseFp8Linear(Fp8Linear):
    """The same weight on CUDA, batch-invariant: one kernel for any number of rows.

    Activations stay as they are, so large batches run at the rate of bfloat16 at most.
    """

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        if self._kernels is None:
            return self._by_definition(x)
        return self._kernels.matmul.matmul(x, self.weight, self.bias, weight_scale=self.scale)


class StaticFp8Linear(Fp8Linear):
    """The same with one static scale for all rows of x; larger values saturate at the largest float8.

    It runs by torch's operations also on CUDA: the kernels compute a row's own scale while they read it, and would gain
    nothing.
    """

    __slots__ = ("scale_of_x",)
    scale_of_x: Tensor

    @classmethod
    def of_range(cls, layer: Fp8Linear, largest: float) -> StaticFp8Linear:
        """largest: the magnitude of x that becomes the largest float8."""
        static = cls(layer.weight, layer.scale, layer.bias)
        static.scale_of_x = values.scale_of(torch.tensor(largest, device=layer.weight.device))
        return static

    def __call__(self, x: Tensor) -> Tensor:
        rows = (x.float() / self.scale_of_x).clamp_(-values.LARGEST, values.LARGEST).to(FP8)
        return self._multiplied(rows, self.scale_of_x.expand(len(x)).contiguous(), x.dtype)


class _Fp8Kernels(NamedTuple):
    few_bits: Any
    matmul: Any
    quantize: Any


def _cuda_kernels() -> _Fp8Kernels:
    from ..kernels import batch_invariant_matmul
    from ..kernels.quantized import quantize_activations, quantized_gemm

    return _Fp8Kernels(quantized_gemm, batch_invariant_matmul, quantize_activations)


__all__ = ["FP8", "Fp8Linear", "RowwiseFp8Linear", "StaticFp8Linear"]
