"""A small thread-safe cache that forgets what was used least recently."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class LruCache(Generic[V]):
    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key; `make` runs outside the lock, and the first one made wins."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make()
        with self._lock:
            value = self._found.setdefault(key, made)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return value
