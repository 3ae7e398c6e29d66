"""Where the keys and values of a step are in layers that see a window only, where these have separate slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True, slots=True)
class WindowSlots:
    """As `slots` and `context_slots` of a Batch say it of the other layers.

    Tokens that no query of the step sees have slot 0.

    table: as `DeviceBatch.table`, of pages of windowed layers; None where kernels on a GPU read none.
    """

    slots: Tensor
    context_slots: Sequence[np.ndarray]
    table: Tensor | None = None


class LazyWindowSlots(Sequence[np.ndarray]):
    """What `make` returns, made on the first access."""

    def __init__(self, make: Callable[[], list[np.ndarray]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> list[np.ndarray]:
        return self._make()

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)
