"""Thousands of random hostile requests beside plain ones: SGL_DRAWS=100 says how many hundreds, without it none.

The short form is tests/cpu/test_hostile_requests.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from test_hostile_requests import walk

from sgl.runtime import Engine

DRAWS = int(os.environ.get("SGL_DRAWS", "0"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRAWS, reason="minutes of hostile requests: SGL_DRAWS=100 makes 10,000 of them"),
]


@pytest.mark.parametrize("seed", range(1000, 1000 + DRAWS))
def test_a_hundred(opened: Engine, seed: int) -> None:
    assert sum(walk(opened, seed, 100).values()) == 100


@pytest.fixture(scope="module")
def opened():
    with Engine(threads=1) as engine:
        yield engine
