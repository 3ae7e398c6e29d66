"""How far a rank's GPU is with the steps that it was given: what hangs there is seen by those that wait for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol


class GpuEvent(Protocol):
    def query(self) -> bool:
        """Whether the GPU has come so far."""


class GpuProgressCount(NamedTuple):
    """steps: that the GPU has done.  compiled: kernels that the rank has compiled or loaded."""

    steps: int = 0
    compiled: int = 0


class GpuProgress:
    """One thread launches steps, others ask.

    mark: records an event on the stream that steps run on.  compiled: see `GpuProgressCount`.
    """

    def __init__(self, mark: Callable[[], GpuEvent], compiled: Callable[[], int] = int) -> None:
        self._mark, self._compiled = mark, compiled
        self._events: deque[GpuEvent] = deque()
        self.launched = self._done = 0

    def launch(self) -> None:
        """A step is queued."""
        self._events.append(self._mark())
        self.launched += 1

    def moved(self) -> GpuProgressCount:
        while self._events and self._events[0].query():
            self._events.popleft()
            self._done += 1
        return GpuProgressCount(self._done, self._compiled())


class StallDetector:
    """Says when a rank has not moved for `limit` seconds, though there are steps for it."""

    def __init__(self, limit: float) -> None:
        self.limit, self._last, self._since = limit, GpuProgressCount(), time.monotonic()

    def __call__(self, moved: GpuProgressCount, steps: int) -> bool:
        """steps: that the rank was given. Called again and again."""
        now = time.monotonic()
        if moved != self._last or moved.steps >= steps:
            self._last, self._since = moved, now
        return now - self._since > self.limit
