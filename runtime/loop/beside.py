"""What takes long beside the loop: threads that take turns in working for generations, who had least first.

One works at a time, in slices. So a text whose grammar needs little waits for a slice of another one, not for all of
it, whatever the others ask for. Some work cannot be cut: behind a slice that has lasted LONG, another one begins beside it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from ..sequences.grammar_work import GrammarWork

Who = TypeVar("Who")
Turn = tuple[int, int, Callable[[], None]]  # steps that were spent, a number, what begins it


LESS = 10  # how much nicer than the process
LONG, MOST = 0.02, 4  # seconds of a slice after which others do not wait for it, and slices at once


def give_way() -> None:
    """Have the calling thread leave the processors to others that want them, where the system can tell threads apart."""
    if sys.platform == "linux":
        with suppress(OSError):
            number = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, number, min(os.getpriority(os.PRIO_PROCESS, number) + LESS, 19))


class Stopped(BaseException):
    """The engine ends: no work goes on."""


class Beside(Generic[Who]):
    """`add`, `done` and `close` are the loop's; `told` is called on another thread when something is done."""

    def __init__(self) -> None:
        self.told: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._numbers = itertools.count()
        self._working, self._since = 0, 0.0  # slices under way, and when the newest began
        self._stopping = False
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._done: deque[Who] = deque()
        self.waiting = 0  # that were added, and not told of as done

    def add(self, who: Who, work: GrammarWork) -> None:
        self.waiting += 1
        self._queue(work, lambda: self._hand(lambda: self._go_on(who, work)))

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
            begin()
        for queue in idle:
            queue.put(None)

    def _queue(self, work: GrammarWork, begin: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._turns, (work.spent, next(self._numbers), begin))
        self._give()

    def _give(self) -> None:
        """The next turn, where nobody has it, or has had it for long."""
        with self._lock:
            now = time.perf_counter()
            if not self._turns or self._working == MOST or (self._working and now - self._since < LONG):
                return
            self._working, self._since = self._working + 1, now
            *_, begin = heapq.heappop(self._turns)
        begin()

    def _over(self) -> None:
        with self._lock:
            self._working -= 1
        self._give()

    def _go_on(self, who: Who, work: GrammarWork) -> None:
        """A slice, on one of the threads."""
        if work.go_on(lambda: self._rest(work)):
            self._done.append(who)
            self.told()
        else:
            self._queue(work, lambda: self._hand(lambda: self._go_on(who, work)))

    def _rest(self, work: GrammarWork) -> None:
        """In the middle of work: until it has its turn again."""
        turn = threading.Event()
        self._queue(work, turn.set)
        self._over()
        turn.wait()
        if self._stopping:
            raise Stopped

    def _hand(self, task: Callable[[], None]) -> None:
        """To a thread that has nothing to do, or a new one."""
        with self._lock:
            if self._stopping:
                return
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue()
            threading.Thread(target=self._serve, args=(queue,), name="sgl-grammars", daemon=True).start()
        queue.put(task)

    def _serve(self, queue: SimpleQueue[Callable[[], None] | None]) -> None:
        give_way()
        while (task := queue.get()) is not None:
            try:
                task()
            except Stopped:
                return
            del task  # what it was done for may end now
            with self._lock:
                if self._stopping:
                    return
                self._idle.append(queue)
            self._over()
