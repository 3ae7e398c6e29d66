"""Main memory on huge pages: code that reads much of it, or locks it, spends less on addresses."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

HUGE_PAGE = 2 << 20  # bytes, of x86


def huge_page_buffer(size: int) -> Tensor:
    """uint8 [size], which the system gives when they are written, on huge pages where it has them.

    Its storage cannot be resized, as weights that sleep must be: those are in `layers/weight_memory.py`.
    """
    space = (
        mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MAP_ANONYMOUS")
        else mmap.mmap(-1, size + HUGE_PAGE)
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of a system without
            space.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(space, np.uint8)
    start = -array.ctypes.data % HUGE_PAGE
    return torch.from_numpy(array[start : start + size])


def huge_page_tensor(size: int) -> Tensor:
    """uint8 [size], on huge pages where it is large.

    Small pages are given one by one, each as long as a copy of some kilobytes.
    """
    return huge_page_buffer(size) if size >= HUGE_PAGE else torch.empty(size, dtype=torch.uint8)
