"""Keys and values of whole pages in main memory, and their way there and back without the host ever waiting.

    KV pool [layers, pages]  <── one gather or scatter ──>  staging [pages, layers]  <── copies ──>  main memory

Every copy is queued on the stream that the model runs on, so that their order is that of the calls: a page may be
given away right after it was saved, and is complete before the step that was planned after its load.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..memory.pinned_memory import aligned, pin_memory
from ..step.device_upload import upload
from .growable_int_array import Ints
from .multi_width_kv_pools import Pool

STAGING = 32 * 2**20  # bytes on the device, for keys and values together
ELEMENTS = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
)  # what is copied has no meaning here: the widest is fastest


class HostKVPages:
    """Room for `places` pages of `page_size` slots each; see `PageCopier`. All but the making is the scheduler
    thread's.

    Raises ConfigError where the driver refuses to lock the memory.
    """

    def __init__(self, pool: Pool, page_size: int, places: int, staging: int = STAGING) -> None:
        self._pool: Pool | None = pool
        stored = _tensors(pool)
        self._element = _widest([tensor.shape[-1] * tensor.element_size() for tensor in stored])
        self._layers = [len(tensor) for tensor in stored]
        self._widths = [page_size * tensor[0, 0].nbytes // self._element.itemsize for tensor in stored]
        self._sizes = [layers * width for layers, width in zip(self._layers, self._widths, strict=True)]
        page = sum(self._sizes) * self._element.itemsize
        self._most = max(1, staging // page)  # pages at a time
        self._staging: Tensor | None = None
        self._kept = aligned(places * page).view(self._element)
        self._unlock = pin_memory(self, self._kept, pool.device, "host_kv") if pool.device.type == "cuda" else None

    def save(self, pages: Ints, places: Ints) -> None:
        """Copy the pool's `pages` to `places`; both distinct."""
        for part in self._parts(len(pages)):
            staging = self._stage(part.stop - part.start)
            for stored, index, staged in zip(self._stored(), self._indices(pages[part]), staging, strict=True):
                torch.index_select(stored, 0, index, out=staged.view(-1, stored.shape[1]))
            self._put(staging, places[part])

    def load(self, places: Ints, pages: Ints) -> None:
        """Copy what was saved at `places` into the pool's `pages`."""
        for part in self._parts(len(pages)):
            staging = self._stage(part.stop - part.start)
            for kept, staged in zip(self._split(self._kept), staging, strict=True):
                for here, there in _runs(places[part]):
                    staged[here].copy_(kept[there], non_blocking=True)
            for stored, index, staged in zip(self._stored(), self._indices(pages[part]), staging, strict=True):
                stored.index_copy_(0, index, staged.view(-1, stored.shape[1]))

    def fill_nan(self, places: Ints) -> None:
        """Poison freed places, so that a stale read is loud (for tests)."""
        for part in self._parts(len(places)):
            staging = self._stage(part.stop - part.start)
            for staged in staging:
                staged.fill_(-1)  # all bits set: NaN in every format
            self._put(staging, places[part])

    def release(self) -> None:
        """Give the staging memory back until the next copy."""
        self._staging = None

    def close(self) -> None:
        """Give everything back. Nothing may be queued any more."""
        self.release()
        if self._unlock is not None:
            self._unlock()
        self._kept, self._pool = self._kept[:0].clone(), None

    # inside

    def _stored(self) -> list[Tensor]:
        """The pool's tensors, with a row for each layer of each page."""
        assert self._pool is not None
        tensors = zip(_tensors(self._pool), self._widths, strict=True)
        return [stored.view(self._element).view(-1, width) for stored, width in tensors]

    def _indices(self, pages: Ints) -> list[Tensor]:
        """The rows of these pages in each of the pool's tensors."""
        assert self._pool is not None
        found: dict[tuple[int, int], Tensor] = {}
        for layers, stored in (kinds := list(zip(self._layers, self._stored(), strict=True))):
            if (layers, len(stored)) not in found:
                starts = np.arange(layers, dtype=np.int64) * (len(stored) // layers)
                found[layers, len(stored)] = upload((pages[:, None] + starts).ravel(), self._pool.device)
        return [found[layers, len(stored)] for layers, stored in kinds]

    def _stage(self, pages: int) -> list[Tensor]:
        if self._staging is None:
            assert self._pool is not None
            self._staging = torch.empty(self._most * sum(self._sizes), dtype=self._element, device=self._pool.device)
        return [part[:pages] for part in self._split(self._staging)]

    def _split(self, memory: Tensor) -> list[Tensor]:
        """Rows for as many pages as there is room for, of each of the pool's tensors."""
        pages = len(memory) // sum(self._sizes)
        parts = memory.split([pages * size for size in self._sizes])
        return [part.view(pages, size) for part, size in zip(parts, self._sizes, strict=True)]

    def _put(self, staging: list[Tensor], places: Ints) -> None:
        for kept, staged in zip(self._split(self._kept), staging, strict=True):
            for here, there in _runs(places):
                kept[there].copy_(staged[here], non_blocking=True)

    def _parts(self, count: int) -> Iterator[slice]:
        return (slice(start, min(count, start + self._most)) for start in range(0, count, self._most))


def _tensors(pool: Pool) -> list[Tensor]:
    return [tensor for part in pool.parts for tensor in part.stored]


def _widest(sizes: list[int]) -> torch.dtype:
    """The widest element that divides rows of all these bytes."""
    return next(element for element in ELEMENTS if not any(size % element.itemsize for size in sizes))


def _runs(places: Ints) -> Iterator[tuple[slice, slice]]:
    """Stretches of consecutive places: where they are in the array, and which they are."""
    borders = np.flatnonzero(np.diff(places) != 1) + 1
    for start, stop in zip([0, *borders.tolist()], [*borders.tolist(), len(places)], strict=True):
        first = int(places[start])
        yield slice(start, stop), slice(first, first + stop - start)
