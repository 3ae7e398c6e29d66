"""benchmarks/gpu_serve.py: the same load for every server, and what its rows say."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def serve() -> Any:
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import gpu_serve

        yield gpu_serve
    finally:
        sys.path.remove(folder)


def test_the_same_seed_gives_every_server_the_same_requests(serve: Any) -> None:
    first, second = (serve.requests(8.0, 20.0, 0, 5000, 1.0, 3) for _ in range(2))
    assert first == second != serve.requests(8.0, 20.0, 0, 5000, 1.0, 4)
    assert 100 < len(first) < 230 and all(a.at <= b.at < 20 for a, b in pairwise(first))
    lengths = sorted(len(request.prompt) for request in first)
    assert 350 < lengths[len(lengths) // 2] < 750 and lengths[-1] <= 4096
    assert [request.at for request in serve.requests(math.inf, 0, 7, 5000, 1.0, 3)] == [0.0] * 7


def test_a_row_counts_what_was_heard(serve: Any) -> None:
    heard = [serve.Heard(0.1, [0.01, 0.03], 0.14, 3), serve.Heard(0.2, [0.02], 0.22, 2), None]
    label, rate, count, speed, first, between, each, failed = serve.row("ours", 4.0, heard, 2.0)
    assert (label, rate, count, speed, failed) == ("ours", "4", "3", "2", "1")
    assert first == "200.0, 200.0" and between == "20.0, 30.0, 30" and each == "20.0, 20.0"
