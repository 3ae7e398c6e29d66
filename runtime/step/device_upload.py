"""Small arrays to a device, and results back, without the host ever waiting for the device's queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """The array as a tensor on `device`; the array may be changed at once.

    On a GPU it goes through page-locked memory: torch keeps such blocks and reuses one only after the copies out of it
    have run. So nothing is overwritten under a copy, and no thread waits.
    """
    source = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return source.clone()
    return source.pin_memory().to(device, non_blocking=True)


def upload_into(target: Tensor, array: np.ndarray) -> None:
    """`upload` to where a tensor of the array's shape is, once what was queued before has run."""
    source = torch.from_numpy(np.ascontiguousarray(array))
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)


class DeviceUploader:
    """`upload` to one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def upload(self, array: np.ndarray) -> Tensor:
        """See `upload`."""
        return upload(array, self.device)


def fetch(*tensors: Tensor) -> Callable[[], list[np.ndarray]]:
    """Queue copies to the host; the returned function waits for these alone and returns the arrays."""
    if not tensors[0].is_cuda:
        arrays: list[Any] = [tensor.numpy() for tensor in tensors]
        return lambda: arrays
    pinned = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for target, source in zip(pinned, tensors, strict=True):
        target.copy_(source, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait() -> list[np.ndarray]:
        event.synchronize()
        return [target.numpy() for target in pinned]

    return wait
