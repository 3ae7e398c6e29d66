"""How much of a step prompts get in which others generate: what is measured, and what follows."""

from __future__ import annotations

import pytest

from sgl.runtime.scheduling import prefill_budget as module
from sgl.runtime.scheduling.prefill_budget import LEAST, WHOLE, PrefillBudget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def steps(pace: PrefillBudget, clock: Clock, tokens: int, seconds: float, count: int = 1) -> None:
    for _ in range(count):
        pace.launched(tokens, clock.now)
        clock.now += seconds
        pace.finished(0)


def test_nothing_is_cut_until_something_was_measured(clock):
    pace = PrefillBudget(0.05)
    assert pace.budget(8192) == 8192
    steps(pace, clock, LEAST - 1, 60.0)
    assert pace.budget(8192) == 8192, "a small step says nothing"


@pytest.mark.parametrize(("cost", "budget"), [(25e-6, 1920), (5e-6, 8192), (1.0, LEAST), (50e-6, 896)])
def test_the_budget_takes_as_long_as_was_asked_for(clock, cost, budget):
    pace = PrefillBudget(0.05)
    steps(pace, clock, 1000, 1000 * cost)
    assert pace.budget(8192) == budget and budget % WHOLE == 0
    assert budget * cost <= 0.05 or budget == LEAST


def test_a_step_that_compiled_does_no_harm(clock):
    pace = PrefillBudget(0.05)
    steps(pace, clock, 1000, 5.0)
    assert pace.budget(8192) == LEAST
    steps(pace, clock, LEAST, LEAST * 25e-6)
    assert pace.budget(8192) == 1920
    steps(pace, clock, 1000, 5.0, 2)
    steps(pace, clock, 1000, 0.025, 3)
    assert pace.budget(8192) == 1920


def test_it_follows_what_becomes_slower(clock):
    pace = PrefillBudget(0.05)
    steps(pace, clock, 1000, 0.025, 20)
    steps(pace, clock, 1000, 0.050, 7)
    assert pace.budget(8192) == 896


def test_a_step_ahead_counts_from_when_the_one_before_it_is_over(clock):
    pace = PrefillBudget(0.05)
    pace.launched(1000, clock.now)
    clock.now += 0.001
    for _ in range(5):  # a step is launched, then that before it is over
        pace.launched(1000, clock.now)
        clock.now += 0.025
        pace.finished(1000)
    assert pace.budget(8192) == 1920


def test_steps_that_nobody_waits_for_count_with_the_next_one(clock):
    pace = PrefillBudget(0.05)
    for _ in range(3):
        pace.launched(1000, clock.now)
        clock.now += 0.001  # the host alone
    clock.now += 0.072
    pace.finished(0)
    assert pace.budget(8192) == 1920


def test_idle_time_counts_for_nobody(clock):
    pace = PrefillBudget(0.05)
    for _ in range(4):
        clock.now += 30.0
        steps(pace, clock, 1000, 0.025)
    assert pace.budget(8192) == 1920


def test_without_a_limit_nothing_is_cut(clock):
    pace = PrefillBudget(None)
    steps(pace, clock, 1000, 5.0)
    assert pace.budget(8192) == 8192
