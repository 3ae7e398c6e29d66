"""Gated activations."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 n] -> [T, n]: silu of the first half times the second."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)
