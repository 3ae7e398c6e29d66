"""Matrix products with the weight in the layout that its device multiplies fastest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu


class Linear:
    """y = x W^T + b, with weight [out, in]; load into `weight` and `bias`, then compute with what `seal` gives.

    scale: float32 [out], what a weight of float8 is to be multiplied with; None for the others.
    """

    __slots__ = ("bias", "weight")
    scale: Tensor | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    @classmethod
    def empty(cls, outputs: int, inputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> Linear:
        """A layer to load into."""
        weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
        return cls(weight, torch.empty(outputs, dtype=dtype, device=device) if bias else None)

    def seal(self, keep_plain: bool) -> Linear:
        """The layer to compute with, once weight and bias are loaded.

        keep_plain: a second layout may be kept beside the plain one where that is faster.
        """
        if self.weight.device.type != "cpu":
            return self
        many = _for_many_rows(self.weight, self.bias)
        if keep_plain and cpu.can_multiply(self.weight.dtype, self.weight.device):
            return FewRowsLinear(self.weight, self.bias, many)
        return many

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


class PackedLinear(Linear):
    """bfloat16 on the CPU: oneDNN's own blocked layout, made once, spares it reordering the weight each call."""

    __slots__ = ()

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(weight, None), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")


class FewRowsLinear(Linear):
    """bfloat16 on a CPU: up to `MOST_ROWS` rows take the compiled kernel, bound by memory only; more take `many`."""

    __slots__ = ("_bias", "_shape", "_weight", "many")

    def __init__(self, weight: Tensor, bias: Tensor | None, many: Linear) -> None:
        super().__init__(weight.contiguous(), bias)
        self.many = many
        self._shape = weight.shape
        self._weight, self._bias = self.weight.data_ptr(), 0 if bias is None else bias.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > cpu.MOST_ROWS:
            return self.many(x)
        return self._few(x, x.new_empty(x.shape[0], self._shape[0]), 0)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        if x.shape[0] > cpu.MOST_ROWS:
            return self.many.added_to(residual, x)
        return self._few(x, residual, residual.data_ptr())

    def _few(self, x: Tensor, out: Tensor, residual: int) -> Tensor:
        rows, (outputs, inputs) = x.shape[0], self._shape
        cpu.kernels.linear(
            x.data_ptr(), self._weight, self._bias, residual, out.data_ptr(), rows, outputs, inputs
        )
        return out


def _for_many_rows(weight: Tensor, bias: Tensor | None) -> Linear:
    if weight.dtype == torch.float32:
        return TransposedLinear(weight, bias)
    if weight.dtype == torch.bfloat16 and can_pack_bfloat16():
        return PackedLinear(weight, bias)
    return Linear(weight, bias)


def can_pack_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 natively here (AVX-512 at least)."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
