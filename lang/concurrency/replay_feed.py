"""A row of items that grows until it is closed, and that any number of readers replay from its start."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

log = logging.getLogger("sgl.lang")
Item = TypeVar("Item")
Waker = Callable[[], object]


class ReplayFeed(Generic[Item]):
    """Append-only and thread-safe. Readers, sync or async, may come early, late and more than once.

    A reader that has to wait leaves a waker, which is called at the next change.
    """

    __slots__ = ("_closed", "_error", "_items", "_lock", "_wakers")

    def __init__(self, items: list[Item] | None = None) -> None:
        self._items: list[Item] = items or []
        self._closed = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._wakers: list[Waker] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._closed:
            raise TypeError("what still grows cannot be pickled or copied; wait for its end")
        return _closed_feed, (self.items, self._error)

    def put(self, item: Item) -> None:
        with self._lock:
            self._items.append(item)
            wakers, self._wakers = self._wakers, None
        if wakers:
            _wake(wakers)

    def close(self, error: BaseException | None = None) -> None:
        """No more items; readers end, or raise `error` after the last item. The first call counts."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._error = True, error
            wakers, self._wakers = self._wakers, None
        if wakers:
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
        """Wait for the end, at most `timeout` seconds; True if it has come."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._wait(lambda: self._closed, left)
        return True

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have `call` called once it is closed, on any thread: at once if it is."""
        if not self._subscribe(lambda: self.when_closed(call), lambda: self._closed):
            call()

    async def closing(self) -> None:
        """Wait for the end without blocking the event loop. Raises nothing."""
        while not self._closed:
            await self._arrival(len(self._items))

    def __iter__(self) -> Iterator[Item]:
        position = 0
        while True:
            while position < len(self._items):
                yield self._items[position]
                position += 1
            if self._closed and position == len(self._items):
                break
            self._wait(lambda at=position: len(self._items) > at or self._closed)  # type: ignore[misc]
        self._raise()

    async def __aiter__(self) -> AsyncIterator[Item]:
        position = 0
        while True:
            while position < len(self._items):
                yield self._items[position]
                position += 1
            if self._closed and position == len(self._items):
                break
            await self._arrival(position)
        self._raise()

    def _wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait for the next change, unless it is `ready` already."""
        changed = threading.Lock()
        changed.acquire()
        wait = -1 if timeout is None else timeout
        if self._subscribe(changed.release, ready) and not changed.acquire(timeout=wait):
            self._unsubscribe(changed.release)

    async def _arrival(self, position: int) -> None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()

        def waker() -> None:
            loop.call_soon_threadsafe(arrived.set)

        if self._subscribe(waker, lambda: len(self._items) > position or self._closed):
            try:
                await arrived.wait()
            finally:
                self._unsubscribe(waker)

    def _subscribe(self, waker: Waker, ready: Callable[[], bool]) -> bool:
        """Have `waker` called at the next change, unless it is `ready` already."""
        with self._lock:
            if ready():
                return False
            self._wakers = [*(self._wakers or ()), waker]
            return True

    def _unsubscribe(self, waker: Waker) -> None:
        with self._lock:
            if self._wakers and waker in self._wakers:
                self._wakers.remove(waker)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _closed_feed(items: list[Item], error: BaseException | None) -> ReplayFeed[Item]:
    feed = ReplayFeed(items)
    feed.close(error)
    return feed


def _wake(wakers: list[Waker]) -> None:
    for waker in wakers:
        try:
            waker()
        except RuntimeError:
            pass  # the reader's event loop is gone
        except BaseException:  # the other readers are woken all the same
            log.exception("a reader could not be woken")
