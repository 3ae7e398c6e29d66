"""Which sequences have run out of time, found without looking at the others."""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING

from ..errors import DeadlineExceeded

if TYPE_CHECKING:
    from .sequence_state import SequenceState

LONGEST_LOOK = 3600.0  # seconds after which a sleeper looks again; waiting has a limit in Python


class SequenceDeadlines:
    """Those that are watched, by `time.monotonic()` seconds; the scheduler thread's own."""

    def __init__(self) -> None:
        self._watched: dict[int, SequenceState] = {}
        self._heap: list[tuple[float, int]] = []  # holds ids alone: who ends early is not kept until its time

    def watch(self, seq: SequenceState) -> None:
        if seq.terms.deadline is not None and seq.id not in self._watched:
            self._watched[seq.id] = seq
            heapq.heappush(self._heap, (seq.terms.deadline, seq.id))

    def forget(self, seq: SequenceState) -> None:
        self._watched.pop(seq.id, None)
        if len(self._heap) > 2 * len(self._watched) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._watched]
            heapq.heapify(self._heap)

    def left(self) -> float | None:
        """Seconds until the next deadline, 0 where one has passed; None: there is no deadline."""
        if not self._watched:
            return None
        return min(LONGEST_LOOK, max(0.0, self._heap[0][0] - time.monotonic()))

    def over(self) -> list[SequenceState]:
        """Those whose time is over, who are watched no longer."""
        found: list[SequenceState] = []
        if not self._watched:
            return found
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            seq = self._watched.pop(heapq.heappop(self._heap)[1], None)
            if seq is not None:
                found.append(seq)
        return found


def too_late(seq: SequenceState) -> DeadlineExceeded:
    late = time.monotonic() - (seq.terms.deadline or 0.0)
    return DeadlineExceeded(
        f"not done in time: the deadline passed {late:.3f} s ago, with {seq.computed} of {len(seq)} tokens computed "
        f"({seq.status.value}); ask for less, or give it a longer timeout"
    )
