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
        self._found: OrderedDict[Hashable, V] = OrderedDict()
        self._making: dict[Hashable, Future[V]] = {}
        self._since_weighed = 0

    def __len__(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._found.clear()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key.

        `make` runs outside the lock, in the thread that asks first; others that ask for the same key wait for it.
        Its exception goes to all of them and is not remembered.
        """
        while True:
            with self._lock:
                if key in self._found:
                    self._found.move_to_end(key)
                    return self._found[key]
                going = self._making.get(key)
                if going is None:
                    mine = self._making[key] = Future()
            if going is None:
                return self._make(key, make, mine)
            try:
                return going.result()
            except CancelledError:
                continue  # its maker was interrupted: ask again

    def _make(self, key: Hashable, make: Callable[[], V], future: Future[V]) -> V:
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()
            raise
        with self._lock:
            del self._making[key]
            self._found[key] = value
            self._forget()
        future.set_result(value)
        return value

    def _forget(self) -> None:
        """Let go of the oldest entries until the bounds hold; the newest one stays."""
        while len(self._found) > self._most:
            self._found.popitem(last=False)
        self._since_weighed += 1
        if self._since_weighed >= min(WEIGHED_EVERY, len(self._found) // 2):
            self._since_weighed = 0
            self._weigh()

    def _weigh(self) -> None:
        sizes = {key: getattr(value, "memory", 0) for key, value in self._found.items()}
        total = sum(sizes.values())
        for key in list(self._found)[:-1]:
            if total <= self._most_bytes:
                return
            del self._found[key]
            total -= sizes[key]
