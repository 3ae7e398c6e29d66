"""Root mean square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class RMSNorm:
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, weight [size]."""

    __slots__ = ("_shape", "eps", "weight")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.eps = eps
        self._shape = (size,)

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self.weight, self.eps)


class HeadNorm:
    """RMSNorm of each query and key head by itself, all heads at once.

    Load `queries` and `keys` [head_dim], then call `seal`.
    """

    __slots__ = ("_shape", "_weight", "eps", "keys", "queries")

    def __init__(self, head_dim: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.queries = torch.empty(head_dim, dtype=dtype, device=device)
        self.keys = torch.empty(head_dim, dtype=dtype, device=device)
        self.eps = eps
        self._shape = (head_dim,)

    def seal(self, query_heads: int, key_heads: int) -> None:
        self._weight = torch.cat((self.queries.expand(query_heads, -1), self.keys.expand(key_heads, -1)))

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, query heads then key heads, head_dim]."""
        return F.rms_norm(x, self._shape, None, self.eps).mul_(self._weight)
