"""Projections with int8 weights on the CPU: half of bfloat16's bytes to read and to store, a quarter of float32's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers import cpu_kernels
from ..layers.linear_layers import BlockedLinear, Linear, in_blocks
from .cpu_int4_linear import LEVELS_OF_BYTES, MIDDLE, Int8GroupedLinear
from .quantized_weight import QuantizedWeight

LARGEST = 127
SMALLEST_PEAK = 1e-12  # of a row, so that zeros have a scale too
PART = 2**22  # numbers of a weight that are quantised, or dequantized for a product, at a time
KINDS = {torch.float32: 2, torch.bfloat16: 3}  # of the compiled product, by what is multiplied
TORCH_ROWS = 16  # up to which torch's own int8 product is faster than dequantizing; it dequantizes again for every four
TORCH_STEP = 16  # of the inputs that it takes


def int8_linear(layer: Linear) -> Linear:
    """A loaded layer with its weight quantised, for the product that this CPU has."""
    weight, bias = layer.weight, layer.bias
    stored, scale = quantize_weight(weight)
    if cpu_kernels.can_compute(weight.dtype, weight.device) and cpu_kernels.kernels.INT4:
        return Int8GroupedLinear(_in_one_group(stored, scale), bias, weight.dtype)
    return Int8Linear(stored, scale, bias, weight.dtype)


def _in_one_group(stored: Tensor, scale: Tensor) -> QuantizedWeight:
    """stored: int8 [out, in], written over; scale: float32 [out]."""
    codes = stored.view(torch.uint8).bitwise_xor_(MIDDLE)
    return QuantizedWeight(codes, scale[:, None], stored.shape[1], LEVELS_OF_BYTES, zero=float(MIDDLE))


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> int8 [out, in] in -127..127 and the float32 scale of each row [out].

    A scale is a number of bfloat16, rounded up, so that products in either dtype dequantize to the same weight.
    """
    stored = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(len(weight), dtype=torch.float32)
    step = max(1, PART // weight.shape[1])
    for rows, out, scales in zip(weight.split(step), stored.split(step), scale.split(step), strict=True):
        peaks = rows.abs().amax(1).float().clamp_min(SMALLEST_PEAK)
        scales.copy_(_rounded_up(peaks / LARGEST))
        out.copy_((rows.float() / scales[:, None]).round_())
    return stored, scale


def _rounded_up(x: Tensor) -> Tensor:
    """The next numbers of bfloat16 that are not below x (positive float32)."""
    return ((x.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)


class Int8BlockedLinear(BlockedLinear):
    """y = x W^T + b with W as int8 times a float32 scale per output, as a checkpoint has it, by the compiled product
    (csrc/quantized/int8_gemm.c).

    x is rounded to 15 bits a row, sums are exact: a row's bits are the same in any batch.
    """

    __slots__ = ("scale",)
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """weight: int8 [out, in]; scale: float32 [out]; dtype: of what is multiplied."""
        self._take(in_blocks(weight), scale, weight.shape[1], bias, dtype)

    @classmethod
    def of_blocks(
        cls, blocks: Tensor, scale: Tensor, inputs: int, bias: Tensor | None, dtype: torch.dtype
    ) -> Int8BlockedLinear:
        """What a layer was made of: its `weight` and `scale`."""
        layer = cls.__new__(cls)
        layer._take(blocks, scale, inputs, bias, dtype)
        return layer

    def _take(self, blocks: Tensor, scale: Tensor, inputs: int, bias: Tensor | None, dtype: torch.dtype) -> None:
        Linear.__init__(self, blocks, bias)
        self.scale = scale
        self._write_struct(KINDS[dtype], len(scale), inputs, scale.data_ptr())


class Int8Linear(Linear):
    """The same by torch, if the compiled product is not available; x as it is, sums in float32."""

    __slots__ = ("_scale_of_x", "scale")
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """weight: int8 [out, in]; scale: float32 [out]; dtype: of what is multiplied."""
        super().__init__(weight, bias)
        self.scale = scale
        self._scale_of_x = scale.to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= TORCH_ROWS and x.dtype == torch.bfloat16 and x.shape[1] % TORCH_STEP == 0:
            y = torch._weight_int8pack_mm(x, self.weight, self._scale_of_x)
        else:
            y = self._restored(x)
        return y if self.bias is None else y.add_(self.bias)

    def _restored(self, x: Tensor) -> Tensor:
        """Integers up to 127 are exact in every dtype: parts of them are multiplied, then scaled."""
        step = max(1, PART // self.weight.shape[1])
        parts = [F.linear(x, part.to(x.dtype)) for part in self.weight.split(step)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return y.mul_(self._scale_of_x)


__all__ = ["Int8BlockedLinear", "Int8Linear", "int8_linear", "quantize_weight"]
