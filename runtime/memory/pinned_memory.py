"""Main memory that is never paged out, so that a GPU reads and writes it by itself."""

from __future__ import annotations

import weakref
from contextlib import suppress

import torch
from torch import Tensor

from ..errors import ConfigError

ALIGNMENT = 4096  # bytes; what is locked shares no page of the system with anything else
PORTABLE, MAPPED = 1, 2  # cudaHostRegister's: locked for every device, and at an address that kernels can read


def aligned(size: int) -> Tensor:
    """Bytes of main memory, which the system gives when they are written or locked."""
    memory = torch.empty(size + 2 * ALIGNMENT, dtype=torch.int8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]


def pin_memory(owner: object, memory: Tensor, device: torch.device, option: str) -> weakref.finalize:
    """Lock it until the result is called or the owner is gone; the memory stays as long.

    option: the engine's, for the error.

    Raises ConfigError where the driver refuses.
    """
    pinned_memory(memory, device, option)
    unlock = weakref.finalize(owner, unpinned_memory, memory, device)
    unlock.atexit = False
    return unlock


def pinned_memory(memory: Tensor, device: torch.device, option: str) -> None:
    """Lock it until `unpinned_memory` is called. Errors as for `pin_memory`."""
    with torch.cuda.device(device):
        status = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE | MAPPED))
        if status:
            with suppress(RuntimeError):  # the driver says so once more at the next launch
                torch.zeros(1, device=device)
            raise ConfigError(
                f"{option}: the driver cannot lock {memory.nbytes / 1e9:.2f} GB of main memory (error {status}); ask "
                "for less"
            )


def unpinned_memory(memory: Tensor, device: torch.device) -> None:
    with suppress(RuntimeError), torch.cuda.device(device):  # of a device that has failed
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
