"""Where windowed layers keep what a step reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..cache import WindowPageTable
from ..step.window_slots import LazyWindowSlots, WindowSlots

if TYPE_CHECKING:
    from ..sequences.sequence_state import ScheduledWork


def window_slots(
    windows: WindowPageTable, work: list[ScheduledWork], slots: list[np.ndarray], tensor: Callable[[np.ndarray], Tensor]
) -> WindowSlots:
    """slots: of all tokens of each sequence, in the other layers."""
    found = [windows.slots(row, lo) for row, (_, lo, _) in zip(slots, work, strict=True)]
    return WindowSlots(tensor(np.concatenate([row[lo:] for row, (_, lo, _) in zip(found, work, strict=True)])), found)


def context_slots(windows: WindowPageTable, work: list[ScheduledWork], padding: int = 0) -> LazyWindowSlots:
    """Of all tokens of each sequence, for who does not read them on the device.

    padding: so many more have one token in slot 0.
    """
    rows = [(seq.slots.array[:hi], lo) for seq, lo, hi in work]
    return LazyWindowSlots(lambda: [windows.slots(row, lo) for row, lo in rows] + [np.zeros(1, np.int32)] * padding)
