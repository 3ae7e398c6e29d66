"""How the scheduler thread tells an event loop what came of its requests."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from sgl.runtime.errors import DeadlineExceeded

from .caller import too_late

T = TypeVar("T")


class Postbox:
    """Hands items to receivers on the thread of `loop`. All that gathers until the loop comes by costs one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the bridge keeps postboxes for as long as their loops live
        self._gathered: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._lock = threading.Lock()
        self._due = False

    def post(self, receiver: Callable[[T], None], item: T) -> None:
        """From any thread; never waits. What is posted to a loop that has ended is dropped."""
        with self._lock:
            self._gathered.append((receiver, item))
            if self._due:
                return
            self._due = True
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:  # the loop is closed: nobody waits
            with self._lock:
                self._gathered.clear()
                self._due = False

    def _hand_out(self) -> None:
        with self._lock:
            gathered, self._gathered = self._gathered, deque()
            self._due = False
        for receiver, item in gathered:
            receiver(item)


class Arrivals(Generic[T]):
    """What arrives for one request, with the index of its sample. Use it as a context manager.

    `seconds` after its start a TimeoutError arrives; None: never. It says `granted`, the seconds of the whole request.
    """

    def __init__(self, postbox: Postbox, seconds: float | None, granted: float | None = None) -> None:
        self._postbox, self._seconds = postbox, seconds
        self._granted = seconds if granted is None else granted
        self._queue: asyncio.Queue[tuple[int, T] | BaseException] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Arrivals[T]:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._queue.put_nowait, too_late(self._granted))
        return self

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def post(self, index: int, item: T) -> None:
        self._postbox.post(self._queue.put_nowait, (index, item))

    def post_failure(self, future: Future[Any]) -> None:
        """Of a future that is done; its result is of no interest."""
        if (error := future.exception()) is not None:
            self._postbox.post(self._queue.put_nowait, error)

    def post_outcome(self, index: int, future: Future[T]) -> None:
        """Result or error of a future that is done."""
        self.post_failure(future)
        if future.exception() is None:
            self.post(index, future.result())

    async def next(self) -> tuple[int, T]:
        """Index of the sample and what came for it. Raises the error that came instead."""
        item = await self._queue.get()
        if isinstance(item, DeadlineExceeded):  # the engine has looked at its clock before the event loop did
            raise too_late(self._granted) from item
        if isinstance(item, BaseException):
            raise item
        return item
