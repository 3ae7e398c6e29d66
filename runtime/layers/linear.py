"""Matrix products with the weight in the layout that its device multiplies fastest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear:
    """y = x W^T + b, with weight [out, in]; load into `weight` and `bias`, then compute with what `seal` gives."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def seal(self) -> Linear:
        """The layer to compute with, once weight and bias are loaded."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in] -> [T, out]."""
        return F.linear(x, self.weight, self.bias)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual [T, out] + self(x); may write into `residual`."""
        return residual.add_(self(x))


class TransposedLinear(Linear):
    """float32 on the CPU: MKL multiplies few rows fastest when the weight lies in memory as [in, out]."""

    __slots__ = ("_matrix",)

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._matrix = weight.t().contiguous()
        super().__init__(self._matrix.t(), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._matrix) if self.bias is None else torch.addmm(self.bias, x, self._matrix)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        residual.addmm_(x, self._matrix)
        return residual if self.bias is None else residual.add_(self.bias)


class PackableLinear(Linear):
    """A plain weight to load into, packed when sealed."""

    __slots__ = ()

    def seal(self) -> Linear:
        return PackedLinear(self.weight, self.bias)


class PackedLinear(Linear):
    """bfloat16 on the CPU: oneDNN's own blocked layout, made once, spares it reordering the weight each call."""

    __slots__ = ()

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight, None), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


def linear(outputs: int, inputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> Linear:
    """An empty layer of the kind that suits `dtype` on `device`."""
    kind = kind_for(dtype, device)
    if kind is TransposedLinear:
        weight = torch.empty(inputs, outputs, dtype=dtype, device=device).t()
    else:
        weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
    return kind(weight, torch.empty(outputs, dtype=dtype, device=device) if bias else None)


def kind_for(dtype: torch.dtype, device: torch.device) -> type[Linear]:
    if device.type != "cpu":
        return Linear
    if dtype == torch.float32:
        return TransposedLinear
    if dtype == torch.bfloat16 and can_pack_bfloat16():
        return PackableLinear
    return Linear


def can_pack_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 natively here (AVX-512 at least)."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
