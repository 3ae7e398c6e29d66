"""Products of rows that are rounded to int8 with weights of int8: integer sums, then both scales."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch_invariant_matmul import matmul
from .quantize_activations import quantize_rows


def product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] @ (weight int8 [out, in] * scale float32 [out])^T + bias [out] -> [T, out] in x's dtype.

    in: a multiple of 16.
    """
    x8, x_scale = quantize_rows(x if x.stride(1) == 1 else x.contiguous(), torch.int8)
    return matmul(x8, weight, bias, x_scale=x_scale, weight_scale=scale, dtype=x.dtype)


__all__ = ["product"]
