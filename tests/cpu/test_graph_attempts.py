"""When a decode step is captured; captures that fail: the step runs without a
graph, and the size is tried once more.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl.runtime.executor import warmup
from sgl.runtime.executor.cuda_graphs import (
    ATTEMPTS,
    EAGER_DECODES_OF_MANY,
    EAGER_RUNS,
    FEW,
    DecodeCudaGraphs,
    sizes_up_to,
)


class Pool:
    """Captures what it is given, after so many failures."""

    def __init__(self, failures: int) -> None:
        self.failures, self.asked, self.replays = failures, 0, 0

    def capture(self, compute):
        self.asked += 1
        if self.asked <= self.failures:
            raise RuntimeError("operation failed due to a previous error during capture")
        return SimpleNamespace(replay=self.replay), compute()

    def replay(self) -> None:
        self.replays += 1


def steps(pool: Pool, count: int) -> list[float]:
    graphs = DecodeCudaGraphs(4, pool)  # type: ignore[arg-type]
    return [float(graphs.run((1, None), lambda: torch.ones(1))[0]) for _ in range(count)]


def test_a_capture_that_failed_is_tried_again() -> None:
    pool = Pool(1)
    assert steps(pool, 8) == [1.0] * 8
    assert (pool.asked, pool.replays) == (2, 5)  # eager, failed, eager, captured and replayed from there on


def test_one_that_fails_each_time_is_given_up() -> None:
    pool = Pool(99)
    assert steps(pool, 20) == [1.0] * 20
    assert (pool.asked, pool.replays) == (ATTEMPTS, 0)


@pytest.mark.parametrize("running, eager", [(FEW, EAGER_RUNS), (FEW + 1, EAGER_DECODES_OF_MANY)])
def test_a_size_is_captured_later_while_many_would_wait_for_it(running: int, eager: int) -> None:
    pool, asked = Pool(0), []
    graphs = DecodeCudaGraphs(256, pool)  # type: ignore[arg-type]
    for _ in range(eager + 2):
        graphs.run((graphs.size_for(running), None), lambda: torch.ones(1), running)
        asked.append(pool.asked)
    assert asked == [0] * eager + [1, 1]


def test_all_sizes_are_captured_while_nobody_waits_the_likely_ones_first() -> None:
    steps: list[int] = []
    runner: Any = SimpleNamespace(
        decode_sizes=sizes_up_to(320),
        forward=lambda work: steps.append(len(work)),
        capture_mixed=lambda: steps.append(0) or iter([None]),
    )
    for _ in warmup.warm_up_graphs(runner):
        pass
    first, later = (part[::2] for part in (steps[: steps.index(0)], steps[steps.index(0) + 1 :]))
    assert first == [1, 2, 4, 8, 16, 32, 64, 128, 256] and later == [96, 160, 192, 224]
    assert len(steps) == 2 * (len(first) + len(later)) + 1
