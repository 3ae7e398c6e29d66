"""What a layer that keeps a state instead of keys and values keeps for a sequence, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RecurrentStateShape:
    """One tensor of a layer's state. exact: kept in float32, otherwise in the model's dtype."""

    shape: tuple[int, ...]
    exact: bool = False

    def kept_as(self, dtype: torch.dtype) -> torch.dtype:
        import torch

        return torch.float32 if self.exact else dtype

    def bytes(self, dtype: torch.dtype) -> int:
        return math.prod(self.shape) * self.kept_as(dtype).itemsize
