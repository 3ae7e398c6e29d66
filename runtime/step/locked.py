"""Main memory that is never paged out, so that a GPU reads and writes it by itself."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress

import torch
from torch import Tensor

from ..errors import ConfigError

ALIGNMENT = 4096  # bytes; what is locked shares no page of the system with anything else
SLACK = 1.25  # times as much as is asked for, at most
PORTABLE, MAPPED = 1, 2  # cudaHostRegister's: locked for every device, and at an address that kernels can read


def aligned(size: int) -> Tensor:
    """Bytes of main memory, which the system gives when they are written or locked."""
    memory = torch.empty(size + 2 * ALIGNMENT, dtype=torch.int8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]


def lock(owner: object, memory: Tensor, device: torch.device, option: str) -> weakref.finalize:
    """Lock it until the result is called or the owner is gone; the memory stays as long. option: the engine's, for the error.

    Raises ConfigError where the driver refuses.
    """
    with torch.cuda.device(device):
        status = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE | MAPPED))
        if status:
            with suppress(RuntimeError):  # the driver says so once more to whoever launches next
                torch.zeros(1, device=device)
            raise ConfigError(f"{option}: the driver cannot lock {memory.nbytes / 1e9:.2f} GB of main memory (error {status}); ask for less")
    unlock = weakref.finalize(owner, _unlock, memory, device)
    unlock.atexit = False
    return unlock


def _unlock(memory: Tensor, device: torch.device) -> None:
    with suppress(RuntimeError), torch.cuda.device(device):  # of a device that has failed
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


class Piece:
    """Locked as long as somebody has it."""

    def __init__(self, size: int, device: torch.device, option: str) -> None:
        self.memory = aligned(size)
        lock(self, self.memory, device, option)


class LockedPieces:
    """Locked memory that is given out again: to lock it takes longer than to read what will lie there.

    most_free: bytes that are kept though nobody has them.  option: see `lock`.  `take` is thread-safe.
    """

    def __init__(self, device: torch.device, most_free: int, option: str) -> None:
        self._device, self._most_free, self._option = device, most_free, option
        self._back: deque[Piece] = deque()  # from finalizers, which run anywhere: the driver, who may wait for the device, is not called there
        self._free: list[Piece] = []
        self._turn = threading.Lock()

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count] zeros. Others get the memory when this very tensor is gone: who has it read by a device holds it until that is done."""
        size = count * dtype.itemsize
        if not size:
            return torch.zeros(0, dtype=dtype)
        piece = self._found(size) or Piece(size, self._device, self._option)
        given = piece.memory[:size].view(dtype).zero_()
        weakref.finalize(given, self._back.append, piece).atexit = False
        return given

    def _found(self, size: int) -> Piece | None:
        with self._turn:
            while self._back:
                self._free.append(self._back.popleft())
            fitting = [piece for piece in self._free if size <= piece.memory.nbytes <= SLACK * size]
            found = min(fitting, key=lambda piece: piece.memory.nbytes, default=None)
            if found is not None:
                self._free.remove(found)
            while sum(piece.memory.nbytes for piece in self._free) > self._most_free:
                self._free.pop(0)
            return found
