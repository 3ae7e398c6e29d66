"""Who watches programs from outside, such as a tracer. Without an observer, a run only asks whether there is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from ..backend import Backend


class RunObserver(Protocol):
    """Watches one run."""

    def scope(self) -> AbstractContextManager[object]:
        """What is started inside belongs to the run."""

    def called(self, program: str) -> AbstractContextManager[object]:
        """Inside, the body of another program runs on the same state."""

    def began(self, piece: Any, state: Any) -> Callable[[], None]:
        """A gen or select was appended, as a PendingText, to the state of a StreamExecutor.

        What is returned is called once it is done, on any thread.
        """

    def ended(self, error: BaseException | None) -> None:
        """The body has ended, and all that its state has queued is done."""


class ProgramObserver(Protocol):
    """Watches all programs of this process."""

    def run(self, program: str, backend: Backend) -> RunObserver: ...
    def tool(self, name: str, arguments: Any, id: str | None) -> AbstractContextManager[Callable[[Any], None]]:
        """Inside, a tool's function runs; what is entered is called with its result."""


_observer: ProgramObserver | None = None


def observe(observer: ProgramObserver | None) -> None:
    """Watch all runs and tools that begin from now on; None: no more."""
    global _observer
    _observer = observer


def observed_run(program: str, backend: Backend) -> RunObserver | None:
    return _observer.run(program, backend) if _observer else None


def observed_tool(name: str, arguments: Any, id: str | None) -> AbstractContextManager[Callable[[Any], None]]:
    return _observer.tool(name, arguments, id) if _observer else nullcontext(_ignore)


def _ignore(result: Any) -> None:
    """There is no observer for a tool's result."""
