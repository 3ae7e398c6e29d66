"""How much work on automata a thread may do before it stops, so that what takes long can be done elsewhere.

Work is counted in steps of some nanoseconds (`core/base/work_budget.h`), so that it is the same on any machine. Nothing
that was found is lost when a thread stops: who asks again goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

STEPS_A_SECOND = 200_000_000  # about; what is not counted in steps is measured
UNLIMITED = (1 << 63) - 1
T = TypeVar("T")


class WorkUnfinished(Exception):
    """What was asked for needs more work than the thread may do, or what another thread is working on."""


class WorkBudget:
    """A hasty one waits for no other thread, builds no rule and stops in the middle of what it does.

    left: steps that may still be done now.  spent: steps that were done.
    most: steps that may be done of what would have to begin anew if it stopped.
    """

    def __init__(self, left: int, hasty: bool, most: int = UNLIMITED) -> None:
        self.left, self.hasty, self.most = left, hasty, most
        self.spent = 0

    def spend(self, steps: int) -> None:
        self.left -= steps
        self.spent += steps

    def more(self) -> int:
        """Steps for what would have to begin anew, when none are left; none: it has to."""
        return 0

    def timed(self, work: Callable[[], T]) -> T:
        """Do what is measured by the clock. Raises Unfinished where there is no time for it."""
        if self.hasty or self.left < 0:
            raise WorkUnfinished
        began = time.perf_counter()
        try:
            with metered(None):
                return work()
        finally:
            self.spend(int((time.perf_counter() - began) * STEPS_A_SECOND))


class _Local(threading.local):
    meter: WorkBudget | None = None


_LOCAL = _Local()


def current() -> WorkBudget | None:
    """The meter of this thread; None: it may do what it likes."""
    return _LOCAL.meter


def hasty() -> bool:
    meter = _LOCAL.meter
    return meter is not None and meter.hasty


@contextmanager
def metered(meter: WorkBudget | None) -> Iterator[None]:
    """Have this thread work by a meter, or without one."""
    before, _LOCAL.meter = _LOCAL.meter, meter
    try:
        yield
    finally:
        _LOCAL.meter = before
