"""Operations of one stream, one at a time and in order, run by the calling thread; none waits for another thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Operation = Callable[[], None]
Failure = Callable[[BaseException], object]


class SerialQueue:
    """Unlike a Gate it holds no lock while an operation runs: operations end futures, and those call back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Operation, Failure]] = deque()
        self._busy = False
        self._shut = False
        self._error: BaseException | None = None

    def run(self, operation: Operation, fail: Failure) -> None:
        """Do it now, or when what precedes it is done. `fail` gets what it raises."""
        with self._lock:
            self._waiting.append((operation, fail))
        self._drain()

    def shut(self) -> None:
        """Let nothing pass until `open`. Called by a running operation."""
        self._shut = True

    def open(self, first: Operation, fail: Failure) -> None:
        """Continue: with `first`, then with what has been waiting."""
        with self._lock:
            self._waiting.appendleft((first, fail))
            self._shut = False
        self._drain()

    def break_with(self, error: BaseException) -> None:
        """Fail what waits, and all that follows."""
        with self._lock:
            self._error, self._shut = error, False
        self._drain()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if self._busy or self._shut or not self._waiting:
                    return
                self._busy = True
                operation, fail = self._waiting.popleft()
                broken = self._error
            try:
                self._attempt(operation, fail, broken)
            finally:
                self._busy = False

    @staticmethod
    def _attempt(operation: Operation, fail: Failure, broken: BaseException | None) -> None:
        if broken is not None:
            fail(broken)
            return
        try:
            operation()
        except Exception as error:
            fail(error)
