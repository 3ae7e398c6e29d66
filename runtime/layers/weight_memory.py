"""Memory of the weights that the compiled products read: of one model together on huge pages, for fewer TLB misses."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from . import cpu_kernels

LINE = 64  # bytes of a line of the cache
LARGE = 2**25  # bytes of a tensor that is loaded
ROOM = 2**26  # bytes that are taken at a time: the system gives a page once it is written


class _OpenRoom(threading.local):
    """What is left of the room of this thread's weights; None: they are stored by themselves."""

    rest: Tensor | None = None


_open = _OpenRoom()


@contextmanager
def stored_together() -> Iterator[None]:
    """Weights that this thread packs meanwhile follow each other in memory."""
    before, _open.rest = _open.rest, torch.empty(0, dtype=torch.uint8)
    try:
        yield
    finally:
        _open.rest = before


def weight_bytes(size: int) -> Tensor:
    """uint8 [size] from a line of the cache on, not yet written."""
    if _open.rest is None:
        return torch.empty(size, dtype=torch.uint8)
    taken = -(-size // LINE) * LINE
    if taken > len(_open.rest):
        _open.rest = cpu_kernels.huge_page_bytes(max(taken, ROOM))
    found, _open.rest = _open.rest[:size], _open.rest[taken:]
    return found


def empty_to_load(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to load into; on huge pages where it is so large that the C library asks the system for it each time."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or cpu_kernels.kernels is None or size < LARGE:
        return torch.empty(shape, dtype=dtype, device=device)
    return cpu_kernels.huge_page_bytes(size).view(dtype).view(shape)


def empty_weight(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return weight_bytes(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
