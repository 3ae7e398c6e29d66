"""Products of each head's numbers with a separate matrix per head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import cpu_kernels

FEW_ROWS = 16  # that the compiled product multiplies, which reads a matrix once for four of them


class HeadwiseMatmul:
    """y[t, h] = x[t, h] weight[h], with weight [heads, in, out], contiguous."""

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, heads, in], each head's numbers adjacent -> [T, heads, out], contiguous."""
        heads, inputs, outputs = self.weight.shape
        if cpu_kernels.can_compute(x.dtype, x.device) and (len(x) <= FEW_ROWS or cpu_kernels.most_numbers == math.inf):
            y = x.new_empty(len(x), heads, outputs)
            at = x.data_ptr(), x.stride(0), x.stride(1), self.weight.data_ptr(), y.data_ptr()
            cpu_kernels.kernels.headwise(cpu_kernels.KINDS[x.dtype], *at, len(x), heads, inputs, outputs)
            return y
        return torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1).contiguous()
