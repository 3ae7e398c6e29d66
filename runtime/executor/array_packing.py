"""Several small int32 arrays in one, so that a step costs one copy to the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

ALIGNED = 4  # values: 16 bytes, so that kernels are compiled once for every place in the packed array


def pack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """int32; each array starts at a multiple of `ALIGNED`."""
    sizes = [len(array) for array in arrays]
    packed = np.zeros(sum(map(_aligned, sizes)), np.int32)
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        packed[start : start + size] = array
        start += _aligned(size)
    return packed


def unpack(packed: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of what `pack` was given, by the lengths of the arrays."""
    views, start = [], 0
    for size in sizes:
        views.append(packed[start : start + size])
        start += _aligned(size)
    return views


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
