"""Root mean square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu


class RMSNorm:
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, weight [size]."""

    __slots__ = ("_eps", "_shape", "eps", "weight")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.eps = eps
        self._shape, self._eps = (size,), round(eps * 1e12)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, size], contiguous."""
        if cpu.suits(x):
            y = torch.empty_like(x)
            rows, size = x.shape
            cpu.kernels.rms_norm(
                cpu.KINDS[x.dtype], x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), rows, size, self._eps
            )
            return y
        return F.rms_norm(x, self._shape, self.weight, self.eps)


class HeadNorm:
    """RMSNorm of each query and key head by itself, all heads at once.

    Load `queries` and `keys` [head_dim], then call `seal`, which fills `weight` [query heads + key heads, head_dim].
    """

    __slots__ = ("_eps", "_shape", "eps", "keys", "queries", "weight")

    def __init__(self, head_dim: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.queries = torch.empty(head_dim, dtype=dtype, device=device)
        self.keys = torch.empty(head_dim, dtype=dtype, device=device)
        self.eps = eps
        self._shape, self._eps = (head_dim,), round(eps * 1e12)

    def seal(self, query_heads: int, key_heads: int) -> None:
        self.weight = torch.cat((self.queries.expand(query_heads, -1), self.keys.expand(key_heads, -1)))

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, query heads then key heads, head_dim], maybe in place; the last two dimensions are contiguous."""
        if cpu.suits(x):
            kind, (tokens, heads, dim) = cpu.KINDS[x.dtype], x.shape
            cpu.kernels.norm_heads(
                kind, x.data_ptr(), x.stride(0), self.weight.data_ptr(), tokens, heads, dim, self._eps
            )
            return x
        return F.rms_norm(x, self._shape, None, self.eps).mul_(self.weight)
