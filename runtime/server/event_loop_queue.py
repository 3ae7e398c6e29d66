"""How the scheduler thread tells an event loop what came of its requests."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from sgl.runtime.errors import DeadlineExceeded
from sgl.runtime.sequences.generation import Chunk

from .request_context import deadline_error

T = TypeVar("T")

MOST_WAITING = 128  # items of each sequence that wait to be taken
UNTAKEN_SECONDS = 3.0  # after which a full queue counts as abandoned


class Abortable(Protocol):
    def abort(self) -> None: ...


class LoopQueue:
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
        except RuntimeError:  # the loop is closed: no task waits
            with self._lock:
                self._gathered.clear()
                self._due = False

    def _hand_out(self) -> None:
        with self._lock:
            gathered, self._gathered = self._gathered, deque()
            self._due = False
        for receiver, item in gathered:
            receiver(item)


class RequestLoopQueue(Generic[T]):
    """What arrives for one request, with the index of its sample. Use it as a context manager.

    `seconds` after its start a TimeoutError arrives; None: never. It says `granted`, the seconds of the whole request.
    The `sequences` that write into it are aborted when it is full and nothing was taken for a while.
    """

    def __init__(
        self,
        loop_queue: LoopQueue,
        seconds: float | None,
        granted: float | None = None,
        sequences: Sequence[Abortable] = (),
    ) -> None:
        self._loop_queue, self._seconds = loop_queue, seconds
        self._granted = seconds if granted is None else granted
        self._arrived: deque[tuple[int, T] | BaseException] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sequences = sequences
        self._taken = time.monotonic()

    def __enter__(self) -> RequestLoopQueue[T]:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._add, deadline_error(self._granted))
        return self

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def post(self, index: int, item: T) -> None:
        self._loop_queue.post(self._put, (index, item))

    def post_failure(self, future: Future[Any]) -> None:
        """Of a future that is done; its result is of no interest."""
        if (error := future.exception()) is not None:
            self._loop_queue.post(self._add, error)

    def post_outcome(self, index: int, future: Future[T]) -> None:
        """Result or error of a future that is done."""
        self.post_failure(future)
        if future.exception() is None:
            self.post(index, future.result())

    async def next(self) -> tuple[int, T]:
        """Index of the sample and what came for it. Raises the error that came instead.

        Pieces of one sample that have gathered come as one: a reader that lags gets longer pieces, not more of them.
        """
        while not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._arrived.popleft()
        self._taken = time.monotonic()
        if isinstance(item, DeadlineExceeded):  # the engine has looked at its clock before the event loop did
            raise deadline_error(self._granted) from item
        if isinstance(item, BaseException):
            raise item
        while self._arrived and _goes_on(item, self._arrived[0]):
            item[1].add(self._arrived.popleft()[1])  # type: ignore[attr-defined, index]
        return item

    def _add(self, item: tuple[int, T] | BaseException) -> None:
        self._arrived.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _put(self, item: tuple[int, T]) -> None:
        """What comes, on the event loop."""
        if not self._arrived:
            self._taken = time.monotonic()  # nothing was there to be taken
        self._add(item)
        full = len(self._arrived) > MOST_WAITING * len(self._sequences) > 0
        if full and time.monotonic() - self._taken > UNTAKEN_SECONDS:
            for sequence in self._sequences:
                sequence.abort()


def _goes_on(item: Any, after: Any) -> bool:
    """Whether `after` is the piece of text that follows `item`."""
    return (
        isinstance(after, tuple)
        and after[0] == item[0]
        and isinstance(item[1], Chunk)
        and isinstance(after[1], Chunk)
        and item[1].generation is None
    )
