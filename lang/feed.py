"""A row of items that grows until it is closed, and that any number of readers replay from its start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Feed(Generic[Item]):
    """Append-only and thread-safe. Readers, sync or async, may come early, late and more than once."""

    __slots__ = ("_changed", "_closed", "_error", "_items", "_wakers")

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition(threading.Lock())
        self._wakers: list[Callable[[], object]] = []

    def put(self, item: Item) -> None:
        with self._changed:
            self._items.append(item)
            wakers = self._notify()
        _wake(wakers)

    def close(self, error: BaseException | None = None) -> None:
        """No more items; readers end, or raise `error` after the last item. The first call counts."""
        with self._changed:
            if self._closed:
                return
            self._closed, self._error = True, error
            wakers = self._notify()
        _wake(wakers)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def error(self) -> BaseException | None:
        return self._error

    @property
    def items(self) -> list[Item]:
        """What has come so far."""
        return list(self._items)

    def wait_closed(self, timeout: float | None = None) -> bool:
        if self._closed:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout)

    async def closing(self) -> None:
        """Wait for the end without blocking the event loop. Raises nothing."""
        while not self._closed:
            await self._arrival(len(self._items))

    def __iter__(self) -> Iterator[Item]:
        position = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda at=position: len(self._items) > at or self._closed)  # type: ignore[misc]
            while position < len(self._items):
                yield self._items[position]
                position += 1
            if self._closed and position == len(self._items):
                break
        self._raise()

    async def __aiter__(self) -> AsyncIterator[Item]:
        position = 0
        while True:
            await self._arrival(position)
            while position < len(self._items):
                yield self._items[position]
                position += 1
            if self._closed and position == len(self._items):
                break
        self._raise()

    async def _arrival(self, position: int) -> None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def waker() -> None:
            loop.call_soon_threadsafe(arrived.set)

        if self._subscribe(waker, lambda: len(self._items) > position or self._closed):
            try:
                await arrived.wait()
            finally:
                self._unsubscribe(waker)

    def _subscribe(self, waker: Callable[[], object], ready: Callable[[], bool]) -> bool:
        """Have `waker` called at the next change, unless it is `ready` already."""
        with self._changed:
            if ready():
                return False
            self._wakers.append(waker)
            return True

    def _unsubscribe(self, waker: Callable[[], object]) -> None:
        with self._changed:
            if waker in self._wakers:
                self._wakers.remove(waker)

    def _notify(self) -> list[Callable[[], object]]:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        return wakers

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _wake(wakers: list[Callable[[], object]]) -> None:
    for waker in wakers:
        try:
            waker()
        except RuntimeError:
            pass  # the reader's event loop is gone
