"""Long grammar work outside of the loop: threads take turns in working for generations, those that had least first.

One works at a time, in slices. So a text whose grammar needs little waits for a slice of another one, not for all of
it, whatever the others ask for. Some work cannot be cut: a slice that has lasted LONG counts no more, others take turns
in parallel.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from ..common.thread_priority import yield_priority
from ..sequences.pending_grammar import PendingGrammar

Who = TypeVar("Who")
Turn = tuple[
    int, int, Callable[[float], None]
]  # steps that were spent, a number, what begins it, with the time at which it does
Task = tuple[Callable[[], None], float]

LONG, MOST = 0.01, 4  # seconds of a slice after which others do not wait for it, and slices at once


class GrammarWorkStopped(BaseException):
    """The engine ends: no work goes on."""


class GrammarWorkers(Generic[Who]):
    """`add`, `done` and `close` are the loop's; `told` is called on another thread when something is done."""

    def __init__(self) -> None:
        self.told: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._numbers = itertools.count()
        self._working: list[float] = []  # when the slices under way began
        self._mine = threading.local()  # that of the thread's
        self._stopping = False
        self._idle: list[SimpleQueue[Task | None]] = []
        self._done: deque[Who] = deque()
        self.waiting = 0  # that were added, and not reported as done

    def add(self, who: Who, work: PendingGrammar) -> None:
        self.waiting += 1
        self._queue(work, lambda since: self._hand(lambda: self._go_on(who, work), since))

    def done(self) -> list[Who]:
        """Whose work is done."""
        if self._turns:
            self._give()
        found = [self._done.popleft() for _ in range(len(self._done))]
        self.waiting -= len(found)
        return found

    def close(self) -> None:
        """Let the threads end; they end their slices first."""
        with self._lock:
            self._stopping = True
            turns, self._turns = self._turns, []
            idle, self._idle = self._idle, []
        for *_, begin in turns:
            begin(0.0)
        for queue in idle:
            queue.put(None)

    def _queue(self, work: PendingGrammar, begin: Callable[[float], None]) -> None:
        with self._lock:
            heapq.heappush(self._turns, (work.spent, next(self._numbers), begin))
        self._give()

    def _give(self) -> None:
        """The next turn, unless one has begun a moment ago."""
        with self._lock:
            now = time.perf_counter()
            if not self._turns or len(self._working) == MOST or any(now - since < LONG for since in self._working):
                return
            self._working.append(now)
            *_, begin = heapq.heappop(self._turns)
        begin(now)

    def _over(self) -> None:
        with self._lock:
            if self._mine.since in self._working:
                self._working.remove(self._mine.since)
        self._give()

    def _go_on(self, who: Who, work: PendingGrammar) -> None:
        """A slice, on one of the threads."""
        if work.go_on(lambda: self._rest(work)):
            self._done.append(who)
            self.told()
        else:
            self._queue(work, lambda since: self._hand(lambda: self._go_on(who, work), since))

    def _rest(self, work: PendingGrammar) -> None:
        """In the middle of work: until it has its turn again."""
        turn: SimpleQueue[float] = SimpleQueue()
        self._queue(work, turn.put)
        self._over()
        self._mine.since = turn.get()
        if self._stopping:
            raise GrammarWorkStopped

    def _hand(self, task: Callable[[], None], since: float) -> None:
        """To a thread that has nothing to do, or a new one."""
        with self._lock:
            if self._stopping:
                return
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue()
            threading.Thread(target=self._serve, args=(queue,), name="sgl-grammars", daemon=True).start()
        queue.put((task, since))

    def _serve(self, queue: SimpleQueue[Task | None]) -> None:
        yield_priority()
        while (taken := queue.get()) is not None:
            task, self._mine.since = taken
            try:
                task()
            except GrammarWorkStopped:
                return
            del task, taken  # what it was done for may end now
            with self._lock:
                if self._stopping:
                    return
                self._idle.append(queue)
            self._over()
