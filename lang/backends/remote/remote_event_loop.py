"""One thread with one event loop, on which all remote calls of the process run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _LoopThread:
    """Started at its first use; again in a forked process, which has no threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def get(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            with self._lock:
                if self._loop is None or self._pid != os.getpid():
                    self._start()
        assert self._loop is not None
        return self._loop

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="sgl-remote", daemon=True).start()
        self._loop, self._pid = loop, os.getpid()


_thread = _LoopThread()


def remote_loop() -> asyncio.AbstractEventLoop:
    """The loop of the remote calls."""
    return _thread.get()


def call_on_loop(call: Callable[..., object], *args: Any) -> None:
    """Have the loop call this soon; calls keep their order."""
    remote_loop().call_soon_threadsafe(call, *args)


class PerEventLoop(Generic[T]):
    """What belongs to one event loop (a client, a semaphore): made at its first use on the running one."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._owner: asyncio.AbstractEventLoop | None = None
        self._value: T | None = None

    def get(self) -> T:
        """The value for the running loop. Call it from a coroutine."""
        loop = asyncio.get_running_loop()
        if self._value is None or self._owner is not loop:
            self._owner, self._value = loop, self._make()
        return self._value

    def peek(self) -> T | None:
        """The value, if it was ever made."""
        return self._value
