"""Statistics of a projection's input over the texts of a calibration, as needed by a rounding."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

SIZES = 2**15  # numbers of bfloat16 from zero on


class InputStatistics(Protocol):
    """Of one projection. Made from its number of inputs and its device."""

    def __init__(self, inputs: int, device: torch.device) -> None: ...

    def add(self, x: Tensor) -> None:
        """x: [T, in], its next input."""


class InputHessian:
    """sums: float32 [in, in], X^T X of all rows."""

    def __init__(self, inputs: int, device: torch.device) -> None:
        self.sums = torch.zeros(inputs, inputs, dtype=torch.float32, device=device)

    def add(self, x: Tensor) -> None:
        wide = x.float()
        self.sums.addmm_(wide.t(), wide)


class InputMagnitudes:
    """counts: int64 [SIZES], how often each magnitude came, as the next number of bfloat16 that is not below it."""

    def __init__(self, inputs: int, device: torch.device) -> None:
        self.counts = torch.zeros(SIZES, dtype=torch.int64, device=device)

    def add(self, x: Tensor) -> None:
        bits = x.float().abs().view(torch.int32)
        self.counts += torch.bincount((bits + 0xFFFF >> 16).flatten(), minlength=SIZES)[:SIZES]

    def percentile(self, percent: float) -> float:
        """The magnitude that `percent` of all do not exceed; 100: the largest. 0.0: there were none."""
        reached = self.counts.cumsum(0)
        wanted = (reached[-1] * (percent / 100)).ceil()
        at = torch.searchsorted(reached, wanted.clamp_min(1).long().reshape(1))
        return float((at.int() << 16).view(torch.float32)) if int(reached[-1]) else 0.0
