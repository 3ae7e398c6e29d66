"""A small thread-safe cache that forgets what was used least recently, and makes nothing twice at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

V = TypeVar("V")
WEIGHED_EVERY = 32  # entries: to ask all of them for their memory takes longer than to make a small one


class LruCache(Generic[V]):
    """Bounded in entries, and in bytes as far as the entries have a `memory` (it may grow after they came in)."""

    def __init__(self, most: int, most_bytes: int = 1 << 30) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Future[V]] = OrderedDict()  # also of what is being made
        self._since_weighed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key.

        `make` runs outside the lock, in the thread that asks first; others that ask for the same key wait for it.
        Its exception goes to all of them and is not remembered.
        """
        while True:
            future, mine = self.reserve(key)
            if mine:
                self.fill(key, future, make)
            try:
                return future.result()
            except CancelledError:
                continue  # its maker was interrupted, or it was cancelled before it was begun: ask again

    def reserve(self, key: Hashable) -> tuple[Future[V], bool]:
        """The future of a key's value, and whether the caller is the one who must have it filled.

        As long as that has not begun, the future can be cancelled.
        """
        with self._lock:
            future = self._entries.get(key)
            mine = future is None or future.cancelled()
            if future is None or mine:
                future = self._entries[key] = Future()
            self._entries.move_to_end(key)
        return future, mine

    def fill(self, key: Hashable, future: Future[V], make: Callable[[], V]) -> None:
        """Make the value of a future that was reserved. Exceptions of `make` go to the future."""
        if not future.set_running_or_notify_cancel():
            self._drop(key, future)
            return
        try:
            value = make()
        except BaseException as error:
            self._drop(key, future)
            future.set_exception(error if isinstance(error, Exception) else CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        future.set_result(value)
        with self._lock:
            self._forget()

    def _drop(self, key: Hashable, future: Future[V]) -> None:
        with self._lock:
            if self._entries.get(key) is future:
                del self._entries[key]

    def _forget(self) -> None:
        """Let go of the oldest entries until the bounds hold; the newest one stays."""
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        self._since_weighed += 1
        if self._since_weighed >= min(WEIGHED_EVERY, len(self._entries) // 2):
            self._since_weighed = 0
            self._weigh()

    def _weigh(self) -> None:
        sizes = {key: _memory(future) for key, future in self._entries.items()}
        total = sum(sizes.values())
        for key in list(self._entries)[:-1]:
            if total <= self._most_bytes:
                return
            del self._entries[key]
            total -= sizes[key]


def _memory(entry: Future[V]) -> int:
    made = entry.done() and not entry.cancelled()
    return getattr(entry.result(), "memory", 0) if made else 0
