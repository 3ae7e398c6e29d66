"""Statistics of loading, counted while the parts arrive and reported by `Engine.info`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LoadStatistics:
    """bytes: that were read.  peak: the most that weights took at a time, in device and host memory together."""

    bytes: int
    seconds: float
    peak: int


def describe_loading(model: object) -> dict[str, float] | None:
    """For `Engine.info`. None: the weights are random, or were loaded by transformers."""
    found: LoadStatistics | None = getattr(model, "loaded", None)
    if found is None:
        return None
    return {
        "bytes": found.bytes,
        "seconds": found.seconds,
        "bytes_per_second": found.bytes / found.seconds,
        "peak_bytes": found.peak,
    }


@dataclass(slots=True)
class LoadMemoryCounter:
    """Bytes of the weights while they are loaded: of what is kept, and of the parts that arrive, as they are stored.

    A part counts in both forms while it is sealed. The readers' buffers and the temporary memory of a single projection
    are not counted.
    """

    peak: int = 0
    _began: float = field(default_factory=time.perf_counter)
    _kept: dict[int, range] = field(default_factory=dict)  # addresses, by the memory: parts share some
    _coming: deque[int] = field(default_factory=deque)

    def comes(self, count: int) -> None:
        self._coming.append(count)
        self._note()

    def sealed(self, tensors: Iterable[Tensor]) -> None:
        """The part that was loaded first is now kept as these tensors."""
        for memory, used in (_memory(tensor) for tensor in tensors if not tensor.is_meta):
            before = self._kept.get(memory, used)
            self._kept[memory] = range(min(before.start, used.start), max(before.stop, used.stop))
        self._note()
        self._coming.popleft()

    def loaded(self, count: int) -> LoadStatistics:
        """All parts are sealed; count: bytes that were read."""
        return LoadStatistics(count, time.perf_counter() - self._began, self.peak)

    def _note(self) -> None:
        self.peak = max(self.peak, sum(map(len, self._kept.values())) + sum(self._coming))


def _memory(tensor: Tensor) -> tuple[int, range]:
    """An identity of the storage, by which shared storage is recognized, and the addresses of it that are used.

    Tensors in oneDNN's own layouts have no storage.
    """
    if tensor.layout is not torch.strided:
        return id(tensor), range(tensor.numel() * tensor.itemsize)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, size = tensor.data_ptr(), (last + 1) * tensor.itemsize if tensor.numel() else 0
    return tensor.untyped_storage().data_ptr(), range(start, start + size)
