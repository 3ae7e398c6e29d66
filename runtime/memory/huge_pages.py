"""Main memory on huge pages: code that reads much of it, or locks it, spends less on addresses."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from .touched_memory import count_lazy, touched_bytes

HUGE_PAGE = 2 << 20  # bytes, of x86
SMALL = 2**16  # bytes: so much of each plane at least is given in small pages; more costs TLB misses in a crowd


def huge_page_buffer(size: int) -> Tensor:
    """uint8 [size], which the system gives when they are written, on huge pages where it has them.

    Its storage cannot be resized, as weights that sleep must be: those are in `layers/weight_memory.py`.
    """
    space = _anonymous(size + HUGE_PAGE)
    _advise(space, "MADV_HUGEPAGE")
    array = np.frombuffer(space, np.uint8)
    start = -array.ctypes.data % HUGE_PAGE
    return torch.from_numpy(array[start : start + size])


def huge_page_tensor(size: int) -> Tensor:
    """uint8 [size], on huge pages where it is large.

    Small pages are given one by one, each as long as a copy of some kilobytes.
    """
    return huge_page_buffer(size) if size >= HUGE_PAGE else torch.empty(size, dtype=torch.uint8)


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device, planes: int = 1) -> Tensor:
    """Zeros; of large ones on the CPU the system gives only what is touched, and they count as taken from the start.

    planes: pieces of equal size, each written from its beginning. The first writes in each touch small pages, so
    that few tokens take little; what follows is on huge pages, whose addresses cost less in long texts.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < HUGE_PAGE:
        return torch.zeros(*shape, dtype=dtype, device=device)
    space = _anonymous(size)
    array = np.frombuffer(space, np.uint8)
    _advise(space, "MADV_NOHUGEPAGE")
    for plane in range(planes):
        start, stop = _huge_part(array.ctypes.data, size * plane // planes, size * (plane + 1) // planes)
        if start < stop:
            _advise(space, "MADV_HUGEPAGE", start, stop - start)
    count_lazy(array)
    return torch.from_numpy(array).view(dtype).view(*shape)


def touched_of(tensor: Tensor) -> int:
    """Bytes of it that the system has given by now; on other devices all."""
    return touched_bytes(tensor.data_ptr(), tensor.nbytes) if tensor.device.type == "cpu" else tensor.nbytes


def _huge_part(address: int, start: int, stop: int) -> tuple[int, int]:
    """Of a plane: from the first border of huge pages after the small ones to the last."""
    first, last = address + start + SMALL, address + stop
    return first + -first % HUGE_PAGE - address, last - last % HUGE_PAGE - address


def _anonymous(size: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


def _advise(space: mmap.mmap, name: str, *part: int) -> None:
    if hasattr(mmap, name):
        with suppress(OSError):  # of a system without
            space.madvise(getattr(mmap, name), *part)
