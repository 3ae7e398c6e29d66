"""Matrix products with the weight in the layout that its device multiplies fastest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu_kernels
from .weight_memory import empty_weight


class LoadedWeight(Protocol):
    """A quantized weight [out, in]."""

    def take(self, rows: Tensor) -> LoadedWeight: ...

    def restore(self, to: Tensor) -> None:
        """Write its numbers to [out, in], rounded once."""

    def dense(self, dtype: torch.dtype) -> Tensor: ...


class Linear:
    """y = x W^T + b, with weight [out, in]; load into `weight` and `bias`, then compute with the result of `seal`.

    scale: float32 [out], the scales of a float8 weight; None for the others.
    coded: the quantized weight as it was loaded; then `weight` is only its shape, until a transform has chosen what
        computes.
    For a head that is tied to an embedding it is the embedding's table.
    """

    __slots__ = ("bias", "coded", "weight")
    scale: Tensor | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.coded: LoadedWeight | None = None

    @classmethod
    def empty(cls, outputs: int, inputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> Linear:
        """A layer to load into."""
        weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
        return cls(weight, torch.empty(outputs, dtype=dtype, device=device) if bias else None)

    def seal(self) -> Linear:
        """The layer to compute with, once weight and bias are loaded: itself, if it was made for a product."""
        if type(self) is not Linear:
            return self
        self.weight = self.weight.contiguous()
        if self.weight.device.type != "cpu":
            return self
        return (
            BlockedLinear(self.weight, self.bias)
            if BlockedLinear.supports(self.weight)
            else _by_torch(self.weight, self.bias)
        )

    def load(self, weight: LoadedWeight) -> None:
        """Its weight is this one, which has another form than the memory that it gives up."""
        self.coded, self.weight = weight, self.weight.to("meta")

    def take_rows(self, order: Tensor) -> None:
        """Keep these rows of the loaded weight and bias, in this order. order: int64, on the CPU."""
        if self.coded is None:
            self.weight = self.weight.index_select(0, order.to(self.weight.device))
        else:
            self.coded = self.coded.take(order)
        if self.bias is not None:
            self.bias = self.bias.index_select(0, order.to(self.bias.device))

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in] -> [T, out]."""
        return F.linear(x, self.weight, self.bias)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual [T, out] + self(x); may write into `residual`."""
        return residual.add_(self(x))

    def dense(self) -> Tensor | None:
        """The weight [out, in] as numbers of the model's type; None: it is kept in another form."""
        return self.weight if type(self) in (Linear, TransposedLinear) else None

    def tensors(self) -> Iterator[Tensor]:
        """Its tensors."""
        yield from (tensor for tensor in (self.weight, self.bias, self.scale) if tensor is not None)


class WrappedLinear(Linear):
    """Computes more than `inner`, or less: it has its weight, and is never packed itself."""

    __slots__ = ("inner",)

    def __init__(self, inner: Linear) -> None:
        super().__init__(inner.weight, inner.bias)
        self.inner = inner

    def tensors(self) -> Iterator[Tensor]:
        return self.inner.tensors()


class TransposedLinear(Linear):
    """float32 on the CPU: MKL multiplies small batches fastest when the weight is stored as [in, out]."""

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

    def dense(self) -> Tensor:
        return self.weight.to_dense()


class BlockedLinear(Linear):
    """On a CPU: the compiled product (csrc/gemm/gemm.h), a row's bits the same in any batch.

    weight: in the product's blocks.  words: what the kernels read of the layer, the struct Weight.
    """

    __slots__ = ("_address", "outputs", "words")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(in_blocks(weight), None if bias is None else bias.contiguous())
        self._write_struct(cpu_kernels.KINDS[weight.dtype], *weight.shape)

    @classmethod
    def of_dense_blocks(cls, blocks: Tensor, shape: tuple[int, int], bias: Tensor | None) -> BlockedLinear:
        """What a layer of this shape [out, in] was made of: its `weight`."""
        layer = cls.__new__(cls)
        Linear.__init__(layer, blocks, None if bias is None else bias.contiguous())
        layer._write_struct(cpu_kernels.KINDS[blocks.dtype], *shape)
        return layer

    def _write_struct(self, kind: int, outputs: int, inputs: int, scales: int = 0) -> None:
        """kind: of the compiled product.  scales: the address of what else it reads."""
        self.outputs = outputs
        addresses = self.weight.data_ptr(), 0 if self.bias is None else self.bias.data_ptr(), scales
        self.words = np.array([*addresses, kind, outputs, inputs], np.int64)
        self._address = self.words.ctypes.data

    @staticmethod
    def supports(weight: Tensor) -> bool:
        """Whether the product is there for such a weight."""
        return cpu_kernels.can_multiply(weight.dtype, weight.device) and not (
            weight.dtype == torch.bfloat16 and weight.shape[1] % 2
        )

    def dense(self) -> Tensor | None:
        if type(self) is not BlockedLinear:
            return None
        return self.weight.transpose(1, 2).reshape(-1, self.weight.shape[1] * self.weight.shape[3])[: self.outputs]

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, x.new_empty(x.shape[0], self.outputs), 0)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        return self._product(x, residual, residual.data_ptr())

    def _product(self, x: Tensor, y: Tensor, residual: int) -> Tensor:
        x = x.contiguous()
        cpu_kernels.kernels.linear(self._address, x.data_ptr(), residual, y.data_ptr(), x.shape[0])
        return y


def in_blocks(weight: Tensor) -> Tensor:
    """weight [out, in] in the layout of csrc/gemm/gemm.h, [out / BLOCK, in / group, BLOCK, group], padded with
    zeros.
    """
    outputs, inputs = weight.shape
    group, blocks = 1 if weight.dtype == torch.float32 else 2, -(-outputs // cpu_kernels.BLOCK)
    packed = empty_weight((blocks, inputs // group, cpu_kernels.BLOCK, group), weight.dtype)
    cpu_kernels.pack_rows(weight, packed.data_ptr(), packed[:1].nbytes, group * weight.itemsize)
    return packed


def _by_torch(weight: Tensor, bias: Tensor | None) -> Linear:
    if weight.dtype == torch.float32:
        return TransposedLinear(weight, bias)
    if weight.dtype == torch.bfloat16 and can_pack_bfloat16():
        return PackedLinear(weight, bias)
    return Linear(weight, bias)


def can_pack_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 natively here (AVX-512 at least)."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
