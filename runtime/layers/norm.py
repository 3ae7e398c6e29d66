"""Norms over the last dimension, computed in float32; their weights are float32 whatever the model's type is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu


class RMSNorm:
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, weight float32 [size].

    Load into `weight`, then call `seal`: it adds `offset`. `bias` is None.
    """

    __slots__ = ("_eps", "_shape", "bias", "eps", "offset", "weight")

    def __init__(self, size: int, eps: float, device: torch.device, offset: float = 0.0) -> None:
        self.weight = torch.ones(size, dtype=torch.float32, device=device)
        self.bias: Tensor | None = None
        self.eps, self.offset = eps, offset
        self._shape, self._eps = (size,), round(eps * 1e12)

    def seal(self) -> None:
        if self.offset:
            self.weight.add_(self.offset)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, size], contiguous."""
        if cpu.suits(x):
            y = torch.empty_like(x)
            rows, size = x.shape
            cpu.kernels.rms_norm(
                cpu.KINDS[x.dtype], x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), rows, size, self._eps
            )
            return y
        return _in_float32(x, self._shape, self.weight, self.eps)


class LayerNorm(RMSNorm):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; bias float32 [size], or None."""

    __slots__ = ()

    def __init__(self, size: int, eps: float, device: torch.device, offset: float = 0.0, bias: bool = True) -> None:
        super().__init__(size, eps, device, offset)
        self.bias = torch.zeros(size, dtype=torch.float32, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self._shape, self.weight, self.bias, self.eps).to(x.dtype)


class HeadNorm:
    """RMSNorm of each query and key head by itself, all heads at once.

    weight: float32 [query heads + key heads, head_dim].
    """

    __slots__ = ("_eps", "_shape", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight.contiguous(), eps
        self._shape, self._eps = weight.shape[-1:], round(eps * 1e12)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, query heads then key heads, head_dim], maybe in place; the last two dimensions are contiguous."""
        if cpu.suits(x):
            kind, (tokens, heads, dim) = cpu.KINDS[x.dtype], x.shape
            cpu.kernels.norm_heads(
                kind, x.data_ptr(), x.stride(0), self.weight.data_ptr(), tokens, heads, dim, self._eps
            )
            return x
        return _in_float32(x, self._shape, self.weight, self.eps)


def _in_float32(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), shape, None, eps).mul_(weight).to(x.dtype)
