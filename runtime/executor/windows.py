"""Where windowed layers keep what a step reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..cache import WindowPages
from ..step.window_slots import WindowSlots

if TYPE_CHECKING:
    from ..sequences.sequence import Work


def window_slots(windows: WindowPages, work: list[Work], slots: list[np.ndarray], tensor: Callable[[np.ndarray], Tensor]) -> WindowSlots:
    """slots: of all tokens of each sequence, in the other layers."""
    found = [windows.slots(row, lo) for row, (_, lo, _) in zip(slots, work, strict=True)]
    return WindowSlots(tensor(np.concatenate([row[lo:] for row, (_, lo, _) in zip(found, work, strict=True)])), found)
