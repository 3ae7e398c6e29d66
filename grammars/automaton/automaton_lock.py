"""Whose turn it is to work on an automaton, and how much."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

from sgl.grammars.automaton.automaton_work_budget import STEPS_A_SECOND, WorkUnfinished, current

if TYPE_CHECKING:
    from sgl.grammars.automaton.automaton_core_selection import Core

LONGEST_WAIT = 0.01  # seconds, for another thread that works on the same automaton, of threads that have other work


class AutomatonLock:
    """An automaton's lock, held while its core works, within what the thread's meter allows."""

    __slots__ = ("_core", "_lock")

    def __init__(self, lock: RLock, core: Core) -> None:
        self._lock, self._core = lock, core

    def __enter__(self) -> None:
        meter = current()
        if meter is None:
            self._lock.acquire()
            return
        if meter.left < 0:
            raise WorkUnfinished
        if not self._lock.acquire(timeout=0 if meter.hasty else LONGEST_WAIT):
            meter.spend(0 if meter.hasty else int(LONGEST_WAIT * STEPS_A_SECOND))
            raise WorkUnfinished
        self._core.allow(meter)

    def __exit__(self, *_: object) -> None:
        meter = current()
        if meter is not None:
            self._core.charge(meter)
        self._lock.release()
