"""The pages of the KV pool: who holds which, and which are free."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .growable_int_array import Ints


class PagePool:
    """Reference-counted pages of `page_size` token slots each.

    A page is held by every sequence row and every radix node that names it and is free when none does.
    Page 0 pads batches and is never handed out. `on_free` sees each array of pages as it is freed
    (the tests fill them with NaN, so that a stale read is loud).
    """

    def __init__(self, pages: int, page_size: int = 1, on_free: Callable[[Ints], None] | None = None) -> None:
        self.page_size = page_size
        self.total = pages - 1
        self.refs = np.zeros(pages, dtype=np.int32)
        self._stack = np.arange(pages - 1, 0, -1, dtype=np.int32)
        self._free = self.total
        self._on_free = on_free

    @property
    def free(self) -> int:
        return self._free

    def allocate(self, count: int) -> Ints:
        """`count` pages held once each. The caller has made sure that so many are free."""
        if count > self._free:
            raise RuntimeError(f"asked for {count} pages where {self._free} are free")
        self._free -= count
        pages = self._stack[self._free : self._free + count][::-1].copy()
        self.refs[pages] = 1
        return pages

    def allocate_page(self) -> int:
        """As `allocate(1)`, for the one page that a decode needs now and then; one must be free."""
        self._free -= 1
        page = int(self._stack[self._free])
        self.refs[page] = 1
        return page

    def retain(self, pages: Ints) -> None:
        self.refs[pages] += 1

    def release(self, pages: Ints) -> int:
        """Give up one hold on each page; returns how many became free."""
        self.refs[pages] -= 1
        freed = pages[self.refs[pages] == 0]
        self._stack[self._free : self._free + len(freed)] = freed[::-1]
        self._free += len(freed)
        if self._on_free is not None and len(freed):
            self._on_free(freed)
        return len(freed)

    def check(self) -> None:
        """Raise if the free stack and the reference counts disagree."""
        free = self._stack[: self._free]
        if len(np.unique(free)) != self._free or 0 in free:
            raise RuntimeError("a page stands twice on the free stack, or the padding page does")
        if (self.refs[free] != 0).any() or (self.refs < 0).any():
            raise RuntimeError("a free page is still held, or a count is negative")
        if self._free + int((self.refs > 0).sum()) != self.total:
            raise RuntimeError("pages were lost")
