"""Host memory that a step fills for the device while copies of earlier steps may still be in flight."""

from __future__ import annotations

import torch
from torch import Tensor

TURNS = 2  # one step runs while the next is prepared


class PinnedBuffers:
    """Pinned buffers used in turn. `take` one, fill it, queue its copy, then call `sent`."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._buffers = [torch.empty(size, dtype=dtype, pin_memory=cuda) for _ in range(TURNS)]
        self._copied: list[torch.cuda.Event | None] = [torch.cuda.Event() if cuda else None for _ in range(TURNS)]
        self._turn = 0

    def take(self) -> Tensor:
        """The next buffer, once its last copy has run: that was two steps ago, so in practice there is no wait."""
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
        return self._buffers[self._turn]

    def sent(self) -> None:
        """The buffer's copy has been queued on the current stream."""
        event = self._copied[self._turn]
        if event is not None:
            event.record()
        self._turn = (self._turn + 1) % TURNS
