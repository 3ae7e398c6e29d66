"""Threads for grammar work outside of the loop. They take turns, those whose work has the lowest rank first.

A task runs when it is its turn, and may wait for another turn in its middle. Where the loop decodes at the same time,
one task runs at a time, in slices. So a text whose grammar needs little waits for a slice of another one, not for all
of it. Some work cannot be cut: what has run for `alone` seconds counts no more, and others run in parallel.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from ..common.thread_priority import yield_priority
from .op_future import note

Task = Callable[[], None]


class GrammarWorkStopped(BaseException):
    """The workers end: no work goes on."""


class GrammarWorkers:
    """Thread-safe, but `rest` is for their tasks. most: tasks at once. alone: seconds in which no other one begins."""

    def __init__(self, most: int, alone: float = 0.0) -> None:
        self._most, self._alone = most, alone
        self._lock = threading.Lock()
        self._turns: list[tuple[int, int, Callable[[float], None]]] = []  # a rank, a number, what begins it, and when
        self._numbers = itertools.count()
        self._running: list[float] = []  # when the turns under way began
        self._own = threading.local()  # that of the thread's
        self._tasks: SimpleQueue[tuple[Task, float] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)  # threads that wait for a task which is not on its way
        self._stopping = False

    def add(self, rank: int, task: Task) -> None:
        """Have a task run."""
        self._queue(rank, partial(self._hand, task))

    def rest(self, rank: int) -> None:
        """In the middle of a task: until it has its turn again."""
        turn: SimpleQueue[float] = SimpleQueue()
        self._queue(rank, turn.put)
        self._over()
        self._own.since = turn.get()
        if self._stopping:
            raise GrammarWorkStopped

    def give_turn(self) -> None:
        """Begin the next turn, if one may begin. What `alone` held up begins when somebody calls this again."""
        if not self._turns:
            return
        with self._lock:
            now = time.perf_counter()
            full = len(self._running) == self._most or any(now - since < self._alone for since in self._running)
            if full or not self._turns:
                return
            self._running.append(now)
            *_, begin = heapq.heappop(self._turns)
        begin(now)

    def close(self) -> None:
        """Let the threads end; they end their turns first."""
        with self._lock:
            self._stopping = True
            turns, self._turns = self._turns, []
        for *_, begin in turns:
            begin(0.0)
        self._tasks.put(None)

    def _queue(self, rank: int, begin: Callable[[float], None]) -> None:
        with self._lock:
            if self._stopping:
                raise GrammarWorkStopped
            heapq.heappush(self._turns, (rank, next(self._numbers), begin))
        self.give_turn()

    def _over(self) -> None:
        with self._lock:
            if self._own.since in self._running:
                self._running.remove(self._own.since)
        self.give_turn()

    def _hand(self, task: Task, since: float) -> None:
        """To a thread that has nothing to do, or a new one."""
        if self._stopping:
            return
        self._tasks.put((task, since))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name="sgl-grammars", daemon=True).start()

    def _serve(self) -> None:
        yield_priority()
        while (taken := self._tasks.get()) is not None:
            task, self._own.since = taken
            try:
                task()
            except GrammarWorkStopped:
                pass
            except BaseException as error:  # a thread that ends would keep its turn
                note("work on a grammar failed", error)
            del task, taken  # what it was done for may end now
            self._idle.release()
            self._over()
        self._tasks.put(None)  # for the next thread
