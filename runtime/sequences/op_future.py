"""The futures of operations:

what their callbacks raise ends nothing else, and a thread that cannot wait gets an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from ..errors import RuntimeFailure

log = logging.getLogger("sgl.runtime")


class OpFuture(Future[Any]):
    """keeper: the thread that settles it and calls back; None: not handed to an engine yet."""

    keeper: threading.Thread | None = None

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Errors of a callback are logged, SystemExit, KeyboardInterrupt and the like too; the others still run."""
        super().add_done_callback(fn if self.done() else partial(_call_back, fn))

    def result(self, timeout: float | None = None) -> Any:
        self._check_wait(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_wait(timeout)
        return super().exception(timeout)

    def _check_wait(self, timeout: float | None) -> None:
        if timeout is None and self.keeper is threading.current_thread() and not self.done():
            raise RuntimeFailure(
                "a callback waits for a result that its own thread has to make, which would never end; "
                "use add_done_callback there, or wait on another thread"
            )


def _call_back(fn: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        fn(future)
    except BaseException as error:
        note(f"a callback of a future failed: {fn!r}", error)


def note(words: str, error: BaseException) -> None:
    """Log an error with its traceback, whatever the handlers of the log do."""
    try:
        log.error(words, exc_info=error)
    except BaseException:
        pass  # a handler of somebody's own: who logs here has to go on
