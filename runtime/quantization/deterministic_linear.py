"""Projections whose bits for a row depend neither on the number of rows nor on its position (batch-invariant)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError
from ..layers.linear_layers import Linear, WrappedLinear

ROWS = 16  # of every product on the CPU: MKL and oneDNN take other kernels, with other sums, for other numbers


class DeterministicLinear(Linear):
    """On CUDA: the Triton product of `kernels.matmul` for any number of rows."""

    __slots__ = ("_matmul",)

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        from ..kernels.batch_invariant_matmul import can_multiply, matmul

        super().__init__(weight.contiguous(), bias)
        if not can_multiply(weight.shape[1], weight.dtype):
            raise ConfigError(
                f"deterministic=True needs projections whose inputs are a multiple of 16 bytes; here is one with "
                f"{weight.shape[1]} inputs of {weight.dtype}: run it without deterministic, or on the CPU"
            )
        self._matmul = matmul

    def __call__(self, x: Tensor) -> Tensor:
        return self._matmul(x, self.weight, self.bias)


class FixedBatchLinear(WrappedLinear):
    """On the CPU: every product has the same number of rows, the last one filled up with zeros.

    inner: what multiplies ROWS rows; its choice of kernel may depend on that number only.
    """

    __slots__ = ()

    def dense(self) -> Tensor | None:
        return self.inner.dense()

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        padded = F.pad(x, (0, 0, 0, -rows % ROWS))
        return torch.cat([self.inner(block) for block in padded.split(ROWS)])[:rows]
