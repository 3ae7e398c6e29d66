"""Turns of grammar work outside of the loop: in slices, who had least first, and nobody waits for a slice that cannot
be cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from server_rig import await_true

from sgl.grammars.automaton.automaton_work_budget import WorkUnfinished
from sgl.runtime.loop.sequence_lifecycle import LONG_SLICE, MOST_SLICES
from sgl.runtime.sequences.grammar_workers import GrammarWorkers
from sgl.runtime.sequences.pending_grammar import PendingGrammar


class Workers(GrammarWorkers):
    """As the loop has them, which looks again and again whether another turn may begin."""

    def __init__(self, alone: float = LONG_SLICE) -> None:
        super().__init__(MOST_SLICES, alone)
        self.found: list[str] = []
        self.waiting = 0

    def start(self, name: str, work: PendingGrammar) -> None:
        self.waiting += 1
        work.start(self, lambda: self.found.append(name))

    def done(self) -> bool:
        self.give_turn()
        return len(self.found) == self.waiting


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close()


def test_short_work_does_not_wait_for_a_slice_that_cannot_be_cut(workers):
    held = threading.Event()
    workers.start("long", PendingGrammar(lambda: held.wait(30) and None, 0))
    time.sleep(0.05)
    for name in ("a", "b", "c"):
        workers.start(name, PendingGrammar(lambda: None, 0))
    await_true(lambda: workers.done() or len(workers.found) == 3)
    assert sorted(workers.found) == ["a", "b", "c"]
    held.set()
    await_true(workers.done)
    assert workers.found[-1] == "long"


def test_not_more_than_some_at_once(workers):
    held, running, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        held.wait(30)
        with lock:
            running[0] -= 1

    for i in range(3 * MOST_SLICES):
        workers.start(str(i), PendingGrammar(work, 0))
    await_true(lambda: workers.done() or most[0] == MOST_SLICES)
    time.sleep(0.1)
    workers.give_turn()
    assert most[0] == MOST_SLICES and not workers.found
    held.set()
    await_true(workers.done)
    assert most[0] <= MOST_SLICES


def test_who_had_least_is_first():
    workers, order, held = Workers(100.0), list[str](), threading.Event()
    workers.start("first", PendingGrammar(lambda: held.wait(30) and None, 0))

    def slices(name: str, count: int) -> Callable[[], None]:
        left = [count]

        def work() -> None:
            order.append(name)
            left[0] -= 1
            if left[0]:
                raise WorkUnfinished

        return work

    works = {"much": PendingGrammar(slices("much", 3), 5000), "little": PendingGrammar(slices("little", 3), 10)}
    for name, work in works.items():
        workers.start(name, work)
    held.set()
    await_true(workers.done)
    assert order == ["little"] * 3 + ["much"] * 3
    workers.close()


def test_who_rests_in_the_middle_goes_on_or_ends_with_the_workers():
    workers, order = GrammarWorkers(1), list[str]()
    begun = threading.Event()

    def resting() -> None:
        begun.wait(10)
        workers.rest(5)
        order.append("rested")
        workers.rest(9)
        order.append("never")

    workers.add(0, resting)
    held = threading.Event()
    workers.add(3, lambda: order.append("little"))
    workers.add(7, lambda: order.append("much") or (held.wait(10) and None))
    begun.set()
    await_true(lambda: order == ["little", "rested", "much"])
    workers.close()
    held.set()
    time.sleep(0.05)
    assert order == ["little", "rested", "much"]


def test_a_task_that_fails_keeps_no_turn():
    workers, order = GrammarWorkers(1), list[str]()

    def failing() -> None:
        raise SystemExit

    workers.add(0, failing)
    workers.add(1, lambda: order.append("next"))
    await_true(lambda: order == ["next"])
    workers.close()


def test_its_threads_end_with_it():
    workers, names = GrammarWorkers(2), list[str]()
    for _ in range(3):
        workers.add(0, lambda: names.append(threading.current_thread().name))
    await_true(lambda: len(names) == 3)
    assert names == ["sgl-grammars"] * 3
    workers.close()
    await_true(lambda: workers._tasks.qsize() == 1 and not _threads(workers))


def _threads(workers: GrammarWorkers) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if getattr(thread, "_target", None) == workers._serve]
