"""Operations that cannot start yet, because what precedes them in their stream is not decided."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..concurrency.one_shot_callbacks import when_done

Operation = Callable[[], None]
Failure = Callable[[BaseException], None]
Found = TypeVar("Found")
Result = TypeVar("Result")


class PendingCalls:
    """Runs operations at once while open; keeps them in order while shut; fails them when broken."""

    def __init__(self, shut: bool = False) -> None:
        self._lock = threading.RLock()
        self._shut = shut
        self._error: BaseException | None = None
        self._held: deque[tuple[Operation, Failure]] = deque()

    def run(self, operation: Operation, fail: Failure = lambda error: None) -> None:
        """Do the operation now or later. `fail` gets what it raises, or the error that broke the gate."""
        with self._lock:
            if self._error is not None:
                fail(self._error)
            elif self._shut:
                self._held.append((operation, fail))
            else:
                _attempt(operation, fail)

    @property
    def broken(self) -> bool:
        return self._error is not None

    def shut(self) -> None:
        """Keep back later calls. Called by a running operation."""
        self._shut = True

    def open(self, first: Operation) -> None:
        """Run `first`, then what was kept, until one of them shuts the gate again."""
        with self._lock:
            first()
            self._shut = False
            while self._held and not self._shut:
                _attempt(*self._held.popleft())

    def break_with(self, error: BaseException) -> None:
        """Fail what was kept, and later calls."""
        with self._lock:
            self._error = error
            held, self._held = self._held, deque()
        for _, fail in held:  # without the lock: futures call back
            fail(error)


def break_all(gates: Iterable[PendingCalls], error: BaseException) -> None:
    for gate in gates:
        gate.break_with(error)


def _attempt(operation: Operation, fail: Failure) -> None:
    try:
        operation()
    except Exception as error:
        fail(error)


def forward_result(source: Future[Found], target: Future[Result], convert: Callable[[Found], Result]) -> None:
    """Have `target` end as `source` does, its result converted."""

    def copy(done: Future[Found]) -> None:
        try:
            result = convert(done.result())
        except BaseException as error:
            target.set_exception(error)
        else:
            target.set_result(result)

    when_done(source, copy)


def gather_results(futures: list[Future[Any]]) -> Future[list[Any]]:
    """A future of all results, in order; it fails with the first error."""
    together: Future[list[Any]] = Future()
    missing = [len(futures)]
    lock = threading.Lock()

    def arrived(done: Future[Any]) -> None:
        with lock:
            missing[0] -= 1
            if together.done() or (missing[0] and not done.exception()):
                return
            if error := done.exception():
                together.set_exception(error)
            else:
                together.set_result([future.result() for future in futures])

    for future in futures:
        when_done(future, arrived)
    if not futures:
        together.set_result([])
    return together
