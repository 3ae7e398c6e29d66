"""Which adapter each row of a step has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

NONE = -1  # the slot of rows without an adapter


@dataclass(slots=True)
class AdapterRows:
    """tokens: int32 [T], the slot of each token's adapter, or NONE.

    wanted: int32 [R], of the rows whose logits are wanted.

    compiled: pointers to what the compiled step reads: slots of the tokens, and what is in the slots.
    device: the same as kernels on a GPU read it.
    """

    tokens: np.ndarray
    wanted: np.ndarray
    compiled: tuple[int, int] | None = None
    device: Any = None
    _groups: dict[int, list[tuple[int, Tensor]]] = field(default_factory=dict)

    def of(self, rows: int) -> np.ndarray:
        """Of all rows of the step, or of those that go on after its last attention: by how many they are."""
        return self.tokens if rows == len(self.tokens) else self.wanted

    def groups(self, rows: int) -> list[tuple[int, Tensor]]:
        """The slots of these rows, each with the numbers of its rows, int64 on the CPU, rising."""
        if rows not in self._groups:
            slots = self.of(rows)
            self._groups[rows] = [
                (int(slot), torch.from_numpy(np.flatnonzero(slots == slot)))
                for slot in np.unique(slots)
                if slot != NONE
            ]
        return self._groups[rows]
