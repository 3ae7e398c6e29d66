"""One thread that calls back at given times, however many runs have a timeout."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("sgl.lang")


class TimeoutAlarm:
    """A call that is due at a time of time.monotonic()."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due = due
        self.call: Callable[[], object] | None = call


class TimeoutThread:
    """Alarms in the order of their times. The thread lives while there are any."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TimeoutAlarm]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._running = False

    def after(self, seconds: float, call: Callable[[], object]) -> TimeoutAlarm:
        """Have `call` made `seconds` from now, on the thread of the deadlines. It must not block."""
        alarm = TimeoutAlarm(time.monotonic() + seconds, call)
        with self._changed:
            heapq.heappush(self._heap, (alarm.due, next(self._numbers), alarm))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="sgl-deadlines", daemon=True).start()
            elif self._heap[0][2] is alarm:
                self._changed.notify()
        return alarm

    def cancel(self, alarm: TimeoutAlarm) -> None:
        """Release the alarm's call."""
        with self._changed:
            alarm.call = None
            if self._heap and self._heap[0][2] is alarm:
                self._changed.notify()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except BaseException:  # the other alarms have no other thread
                log.exception("an alarm failed")
            del call

    def _next(self) -> Callable[[], object] | None:
        """The next call, when it is due; None when there is none left."""
        with self._changed:
            while True:
                while self._heap and self._heap[0][2].call is None:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._running = False
                    return None
                wait = self._heap[0][0] - time.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._heap)[2].call
                self._changed.wait(min(wait, threading.TIMEOUT_MAX))  # "inf" is a timeout


deadlines = TimeoutThread()
