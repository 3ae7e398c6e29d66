"""Captures that fail: the step runs without a graph, and the size is tried once more."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from sgl.runtime.executor.graphs import ATTEMPTS, DecodeGraphs


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
    graphs = DecodeGraphs(4, pool)  # type: ignore[arg-type]
    return [float(graphs.run((1, None), lambda: torch.ones(1))[0]) for _ in range(count)]


def test_a_capture_that_failed_is_tried_again() -> None:
    pool = Pool(1)
    assert steps(pool, 8) == [1.0] * 8
    assert (pool.asked, pool.replays) == (2, 5)  # eager, failed, eager, captured and replayed from there on


def test_one_that_fails_each_time_is_given_up() -> None:
    pool = Pool(99)
    assert steps(pool, 20) == [1.0] * 20
    assert (pool.asked, pool.replays) == (ATTEMPTS, 0)
