"""Turns of grammar work beside the loop: in slices, who had least first, and
nobody waits for a slice that cannot be cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from server_rig import await_true

from sgl.grammars.automaton.automaton_work_budget import WorkUnfinished
from sgl.runtime.loop.grammar_workers import MOST, GrammarWorkers
from sgl.runtime.sequences.pending_grammar import PendingGrammar


def beside_with() -> tuple[GrammarWorkers[str], list[str]]:
    beside: GrammarWorkers[str] = GrammarWorkers()
    return beside, []


def collect(beside: GrammarWorkers[str], found: list[str]) -> Callable[[], bool]:
    def more() -> bool:
        found.extend(beside.done())
        return not beside.waiting

    return more


def test_short_work_does_not_wait_for_a_slice_that_cannot_be_cut():
    beside, found = beside_with()
    held = threading.Event()
    beside.add("long", PendingGrammar(lambda: held.wait(30) and None, 0))
    time.sleep(0.05)
    for name in ("a", "b", "c"):
        beside.add(name, PendingGrammar(lambda: None, 0))
    more = collect(beside, found)
    await_true(lambda: more() or len(found) == 3)
    assert sorted(found) == ["a", "b", "c"] and beside.waiting == 1
    held.set()
    await_true(more)
    assert found[-1] == "long"
    beside.close()


def test_not_more_than_some_at_once():
    beside, found = beside_with()
    held, running, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        held.wait(30)
        with lock:
            running[0] -= 1

    for i in range(3 * MOST):
        beside.add(str(i), PendingGrammar(work, 0))
    more = collect(beside, found)
    await_true(lambda: more() or most[0] == MOST)
    time.sleep(0.1)
    more()
    assert most[0] == MOST and not found
    held.set()
    await_true(more)
    assert most[0] <= MOST and len(found) == 3 * MOST
    beside.close()


def test_who_had_least_is_first(monkeypatch):
    monkeypatch.setattr("sgl.runtime.loop.grammar_workers.LONG", 100.0)
    beside, found = beside_with()
    order: list[str] = []
    held = threading.Event()
    beside.add("first", PendingGrammar(lambda: held.wait(30) and None, 0))

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
        beside.add(name, work)
    held.set()
    more = collect(beside, found)
    await_true(more)
    assert order == ["little"] * 3 + ["much"] * 3
    beside.close()
