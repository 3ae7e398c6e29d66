"""Cards that hang are told from cards that are slow, idle or compile."""

from __future__ import annotations

import io
import threading
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch

from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.parallel.all_reduce_algorithms import LIMITS, algorithm, limits
from sgl.runtime.parallel.rank_collectives import RankCollectives
from sgl.runtime.parallel.workers import gpu_progress
from sgl.runtime.parallel.workers.gpu_progress import GpuProgress, GpuProgressCount, StallDetector
from sgl.runtime.parallel.workers.worker_group import RankGroup


def test_steps_are_done_in_order():
    marks = []

    def mark():
        marks.append(SimpleNamespace(there=False))
        marks[-1].query = lambda mark=marks[-1]: mark.there
        return marks[-1]

    ours = GpuProgress(mark, lambda: 7)
    for _ in range(3):
        ours.launch()
    marks[1].there = True  # not before the first
    assert ours.launched == 3 and ours.moved() == GpuProgressCount(0, 7)
    marks[0].there = True
    assert ours.moved() == GpuProgressCount(2, 7) and ours.moved() == GpuProgressCount(2, 7)


def test_what_does_not_move_hangs_and_nothing_else(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(gpu_progress.time, "monotonic", lambda: now[0])
    stall = StallDetector(10.0)

    def after(seconds: float, moved: GpuProgressCount, steps: int) -> bool:
        now[0] += seconds
        return stall(moved, steps)

    assert not after(50, GpuProgressCount(0, 0), 0)  # nothing to do
    assert not after(9, GpuProgressCount(0, 0), 2) and not after(9, GpuProgressCount(1, 0), 2)  # slow
    assert not after(9, GpuProgressCount(1, 4), 2) and not after(9, GpuProgressCount(1, 5), 2)  # compiles
    assert not after(9, GpuProgressCount(1, 5), 2) and after(2, GpuProgressCount(1, 5), 2)
    assert (
        not after(1, GpuProgressCount(2, 5), 2)
        and not after(99, GpuProgressCount(2, 5), 2)
        and not after(9, GpuProgressCount(2, 5), 3)
        and after(2, GpuProgressCount(2, 5), 3)
    )


def test_a_step_that_hangs_ends_all_ranks(monkeypatch):
    """Of rank 0, whose card does one of two steps; whatever stands for stderr."""
    monkeypatch.setattr("sys.stderr", io.StringIO())
    broken, left = SimpleQueue(), [True, False]
    ours = GpuProgress(lambda: SimpleNamespace(query=lambda there=left.pop(0): there))
    team = RankGroup(1, 0.5, broken.put)
    try:
        team.watch_steps(ours)
        for _ in range(2):
            ours.launch()
        error = broken.get(timeout=30)
    finally:
        team.close()
    assert "a step hangs: rank 0 has done nothing of it for 0.5 s" in str(error) and ours.moved().steps == 1


def test_ranks_that_never_connect_end_all():
    """Of a team without others; a heartbeat that counts ten times while models are loaded."""
    broken, over = SimpleQueue(), threading.Event()
    team = RankGroup(1, 0.05, broken.put)
    try:
        threading.Thread(target=team.met, args=(lambda arrived: (arrived(), over.wait(60)),), daemon=True).start()
        error = broken.get(timeout=30)
    finally:
        over.set()
        team.close()
    assert "the ranks have not connected within 0.5 s" in str(error)


@pytest.mark.whole
def test_ranks_that_are_still_loading_are_waited_for():
    broken, over = SimpleQueue(), threading.Event()
    team = RankGroup(1, 0.05, broken.put)
    try:
        assert team.met(lambda arrived: over.wait(1.5)) is False and broken.empty()
    finally:
        team.close()


@pytest.mark.parametrize("wrong", [False, True])
def test_each_rank_hears_every_other_before_the_first_step(monkeypatch, wrong):
    ranks = object.__new__(RankCollectives)
    ranks.rank, ranks.ranks = 1, 3

    def exchanged(heard, own):
        assert own.tolist() == [3, 4, 5]
        heard.copy_(torch.tensor([1, 4, 7 + wrong]))

    monkeypatch.setattr("torch.distributed.all_to_all_single", exchanged)
    if not wrong:
        return ranks._greet()
    with pytest.raises(RuntimeFailure, match=r"rank 1 heard \[1, 4, 8\]"):
        ranks._greet()


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_small_sums_are_pushed(ranks):
    most = limits(ranks).pushed
    assert limits(ranks) in LIMITS.values() and limits(ranks).to_all <= most
    assert algorithm(ranks, most, True, False) == "push" and algorithm(ranks, most + 1, True, False) == "nccl"
    assert algorithm(ranks, 2**40, True, True) == "push" and algorithm(ranks, 1, False, False) == "nccl"
