"""Pieces of locked main memory that are given out again: locking takes the driver longer than filling."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import RuntimeFailure
from .huge_pages import huge_page_buffer
from .pinned_memory import ALIGNMENT, pinned_memory, unpinned_memory

WASTE = 1.25  # a free piece is given to who needs at least this part of it


class PinnedMemoryDriver(NamedTuple):
    """What is asked of it, each with a piece. lock: raises where it refuses."""

    lock: Callable[[Tensor], None]
    unlock: Callable[[Tensor], None]


def pin_driver_of(device: torch.device, option: str) -> PinnedMemoryDriver:
    return PinnedMemoryDriver(
        lambda memory: pinned_memory(memory, device, option), lambda memory: unpinned_memory(memory, device)
    )


class _PinnedPieces:
    """All pieces by their address, the free ones, the oldest first, and what came back and is not counted yet."""

    def __init__(self, driver: PinnedMemoryDriver) -> None:
        self.driver = driver
        self.pieces: dict[int, Tensor] = {}
        self.free: list[Tensor] = []
        self.back: deque[Tensor] = deque()

    def unlock_all(self) -> None:
        self.free.clear()
        self.back.clear()
        while self.pieces:
            self.driver.unlock(self.pieces.popitem()[1])


class PinnedMemoryPool:
    """Thread-safe. spare: bytes that may stay locked while unused, or the largest piece, if this is more.

    A piece comes back when nothing is left of its tensor, views included. Code that releases the last of it asks
    nothing of the driver, which may wait for the device. Too many free pieces are unlocked when the next one is taken.
    """

    def __init__(self, driver: PinnedMemoryDriver, spare: int) -> None:
        self._held, self._spare, self._lock, self._closed = _PinnedPieces(driver), spare, threading.Lock(), False
        self._end = weakref.finalize(self, self._held.unlock_all)
        self._end.atexit = False

    def take(self, size: int) -> Tensor:
        """uint8 [size], of any contents. Raises what the driver's refusal raises."""
        with self._lock:
            self._check_open()
            self._collect()
            piece = self._fitting(size)
            for each in self._too_many():
                self._held.driver.unlock(each)
        return self._given(self._fresh(size) if piece is None else piece, size)

    def close(self) -> None:
        """Unlock all. Tensors that are out stay readable."""
        with self._lock:
            self._closed = True
            self._end()
            self._held = _PinnedPieces(self._held.driver)  # what comes back from here on is not kept

    @property
    def bytes(self) -> int:
        """That are locked."""
        with self._lock:
            return sum(len(piece) for piece in self._held.pieces.values())

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeFailure("the engine was closed while an adapter was read into locked memory")

    def _collect(self) -> None:
        with suppress(IndexError):
            while True:
                self._held.free.append(self._held.back.popleft())

    def _fitting(self, size: int) -> Tensor | None:
        most = max(size * WASTE, ALIGNMENT)
        fits = [index for index, piece in enumerate(self._held.free) if size <= len(piece) <= most]
        return self._held.free.pop(min(fits, key=lambda index: len(self._held.free[index]))) if fits else None

    def _too_many(self) -> list[Tensor]:
        """The oldest free pieces beyond the limit, which are no longer ours."""
        most = max(self._spare, max(map(len, self._held.pieces.values()), default=0))
        over, found = sum(map(len, self._held.free)) - most, []
        while over > 0:
            found.append(self._held.free.pop(0))
            del self._held.pieces[found[-1].data_ptr()]
            over -= len(found[-1])
        return found

    def _fresh(self, size: int) -> Tensor:
        piece = huge_page_buffer(-(-size // ALIGNMENT) * ALIGNMENT)
        piece.numpy()[::ALIGNMENT] = (
            0  # the system gives it here, not while the driver is asked, which serves one after the other
        )
        self._held.driver.lock(piece)
        with self._lock:
            if self._closed:
                self._held.driver.unlock(piece)
            self._check_open()
            self._held.pieces[piece.data_ptr()] = piece
        return piece

    def _given(self, piece: Tensor, size: int) -> Tensor:
        """The array is what all views of the tensor hold."""
        array = piece.numpy()[:size]
        weakref.finalize(array, self._held.back.append, piece).atexit = False
        return torch.from_numpy(array)
