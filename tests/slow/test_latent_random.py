"""Many random requests and programs on models with latent attention and too few pages: SGL_DRAWS=20 says how many,
without it none.

The short form is in tests/cpu/test_latent_engine.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from test_latent_engine import Make, make, paths, programs, walk
from test_states_programs import unlogged

__all__ = ["make", "paths", "unlogged"]

DRAWS = int(os.environ.get("SGL_DRAWS", "0"))
FIRST = int(os.environ.get("SGL_FIRST_DRAW", "1000"))
CASES = ("deepseek v3", "minicpm 3", "deepseek v3.2", "glm 5, shared")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRAWS, reason="minutes of walking: SGL_DRAWS=20 takes 20 walks of each model"),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + DRAWS))
def test_random_requests(case: str, seed: int, make: Make) -> None:
    assert walk(make, case, seed, 300) > 40


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + DRAWS))
def test_random_programs_in_the_language(case: str, seed: int, make: Make) -> None:
    assert programs(make, case, seed, 30) > 30
