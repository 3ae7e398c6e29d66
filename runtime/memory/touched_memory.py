"""What of memory that the system gives at its first touch was touched by now, asked of the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_lazy: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()  # by address
_lock = threading.Lock()


def count_lazy(array: np.ndarray) -> None:
    """Count this memory as taken, though it is not touched: it begins at a page, and is held through the array."""
    with _lock:
        _lazy[array.ctypes.data] = array


def untouched_bytes() -> int:
    """Bytes that this process has taken and may touch at any time."""
    with _lock:
        taken = list(_lazy.values())
    return sum(array.nbytes - touched_bytes(array.ctypes.data, array.nbytes) for array in taken)


def touched_bytes(address: int, size: int) -> int:
    """Bytes of main memory at this address that are in memory, whole pages, at most `size`.

    About a millisecond a gigabyte.
    """
    start = address - address % mmap.PAGESIZE
    pages = bytearray(-(-(address + size - start) // mmap.PAGESIZE))
    state = (ctypes.c_ubyte * len(pages)).from_buffer(pages)
    if size and _mincore()(start, address + size - start, state):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return min(size, (len(pages) - pages.count(0)) * mmap.PAGESIZE)


@cache
def _mincore() -> Any:
    found = ctypes.CDLL(None, use_errno=True).mincore
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return found
