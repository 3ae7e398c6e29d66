"""Callbacks that release all references once they have been called."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class _OneShotCallback:
    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Future[Any]], object]) -> None:
        self._call: Callable[[Future[Any]], object] | None = call

    def __call__(self, future: Future[Any]) -> None:
        call, self._call = self._call, None
        if call is not None:
            call(future)


def when_done(future: Future[Any], call: Callable[[Future[Any]], object]) -> None:
    """Call `call(future)` when it is done. A Future keeps its callbacks for ever; this one keeps nothing alive."""
    future.add_done_callback(_OneShotCallback(call))
