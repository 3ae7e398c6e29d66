"""Weights in main memory while the device's is given to somebody else."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..loading.tensor_files.tensor_transfer import chunks, transfer

OURS = __name__.partition(".")[0]


def tensors_of(root: object) -> Iterator[Tensor]:
    """Every tensor that an object of this package holds, in its attributes and theirs and in lists, tuples and dicts.

    Objects with `stays_on_device` keep theirs.
    """
    seen: set[int] = set()
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        else:
            stack += _held(item)


def collect_garbage() -> None:
    """Captured steps are cycles that hold what they were captured with."""
    gc.collect()
    torch.cuda.empty_cache()


def _held(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple):
        return list(item)
    if isinstance(item, type) or not type(item).__module__.startswith(OURS) or getattr(item, "stays_on_device", False):
        return []
    slots = [name for kind in type(item).__mro__ for name in _names(kind)]
    in_slots = [getattr(item, name) for name in slots if hasattr(item, name)]
    return [*getattr(item, "__dict__", {}).values(), *in_slots]


def _names(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    return tuple(
        name for name in ((names,) if isinstance(names, str) else names) if name not in ("__dict__", "__weakref__")
    )


class OffloadedWeights:
    """The memory of `tensors`, moved to main memory. The tensors stay valid objects, without content.

    Memory that several tensors share is moved once. `restore` brings it back at new addresses.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {storage.data_ptr(): storage for storage in map(Tensor.untyped_storage, tensors) if storage.nbytes()}
        self._kept = [(storage, storage.device, storage.nbytes()) for storage in storages.values()]
        self._host = [_bytes(storage, device, size).to("cpu", copy=True) for storage, device, size in self._kept]
        self.release()

    def release(self) -> None:
        """Give the device's memory back (again, where `restore` failed half way)."""
        for storage, *_ in self._kept:
            storage.resize_(0)

    @property
    def bytes(self) -> int:
        return sum(size for *_, size in self._kept)

    def restore(self) -> None:
        """Bring everything back. May be tried again where the device had no room, after `release`."""
        for storage, _, size in self._kept:
            storage.resize_(size)
        by_device: dict[torch.device, list[Any]] = {}
        for (storage, device, size), host in zip(self._kept, self._host, strict=True):
            by_device.setdefault(device, []).extend(chunks(_reader(host), torch.uint8, _bytes(storage, device, size)))
        for device, work in by_device.items():
            transfer(work, device)


def _reader(host: Tensor) -> Callable[[int], Callable[[Tensor], None]]:
    return lambda offset: lambda part: _copy(host[offset : offset + len(part)], part)


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


def _bytes(storage: torch.UntypedStorage, device: torch.device, size: int) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (size,), (1,))
