"""Norms over the last dimension, computed in float32; their weights are float32 whatever the model's type is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu_kernels


class RMSNorm:
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, weight float32 [size].

    Load into `weight`, then call `seal`: it adds `offset`. `bias` is None.  words: the struct Norm of the kernels.
    """

    __slots__ = ("_address", "_shape", "bias", "eps", "offset", "weight", "words")
    kind = "rms"

    def __init__(self, size: int, eps: float, device: torch.device, offset: float = 0.0, bias: bool = False) -> None:
        self.weight = torch.ones(size, dtype=torch.float32, device=device)
        self.bias = torch.zeros(size, dtype=torch.float32, device=device) if bias else None
        self.eps, self.offset, self._shape = eps, offset, (size,)
        self.words = cpu_kernels.norm_struct(self.kind, self.weight, self.bias, eps)
        self._address = self.words.ctypes.data

    def seal(self) -> None:
        if self.offset:
            self.weight.add_(self.offset)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, size], contiguous."""
        if cpu_kernels.supports(x):
            y, (rows, size) = torch.empty_like(x), x.shape
            cpu_kernels.kernels.norm(
                cpu_kernels.KINDS[x.dtype], self._address, x.data_ptr(), size, y.data_ptr(), size, rows, 1, size
            )
            return y
        return self._in_torch(x)

    def _in_torch(self, x: Tensor) -> Tensor:
        return _in_float32(x, self._shape, self.weight, self.eps)


class LayerNorm(RMSNorm):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; bias float32 [size], or None."""

    __slots__ = ()
    kind = "layer"

    def _in_torch(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self._shape, self.weight, self.bias, self.eps).to(x.dtype)


class PerHeadNorm:
    """A norm of each query and key head by itself, all heads at once.

    weight, bias: float32 [query heads + key heads, head_dim].  kind: "rms" or "layer".
    """

    __slots__ = ("_address", "_kind", "_shape", "bias", "eps", "weight", "words")

    def __init__(self, weight: Tensor, eps: float, kind: str = "rms", bias: Tensor | None = None) -> None:
        self.weight, self.bias, self.eps, self._kind, self._shape = (
            weight.contiguous(),
            bias,
            eps,
            kind,
            weight.shape[-1:],
        )
        self.words = cpu_kernels.norm_struct(kind, self.weight, bias, eps)
        self._address = self.words.ctypes.data

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, query heads then key heads, head_dim], maybe in place; the last two dimensions are contiguous."""
        if cpu_kernels.supports(x):
            kind, at, (tokens, heads, dim) = cpu_kernels.KINDS[x.dtype], (x.data_ptr(), x.stride(0)), x.shape
            cpu_kernels.kernels.norm(kind, self._address, *at, *at, tokens, heads, dim)
            return x
        if self._kind == "rms" and self.bias is None:
            return _in_float32(x, self._shape, self.weight, self.eps)
        unit = F.layer_norm if self._kind == "layer" else F.rms_norm
        y = unit(x.float(), self._shape, eps=self.eps).mul_(self.weight)
        return (y if self.bias is None else y.add_(self.bias)).to(x.dtype)


def _in_float32(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), shape, None, eps).mul_(weight).to(x.dtype)
