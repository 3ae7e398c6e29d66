"""Many random programs on hybrids with too few pages and states: SGL_DRAWS=20 says how many, without it none.

The short forms are in tests/cpu/test_states_engine.py, test_states_families.py and test_states_programs.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from states_rig import HYBRIDS, Make, make, paths, walk
from test_states_programs import soak, unlogged

__all__ = ["make", "paths", "unlogged"]

DRAWS = int(os.environ.get("SGL_DRAWS", "0"))
FIRST = int(os.environ.get("SGL_FIRST_DRAW", "1000"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRAWS, reason="minutes of walking: SGL_DRAWS=20 takes 20 programs of each model"),
]


@pytest.mark.parametrize("case", ["lfm2", "lfm2, no attention", "lfm2, wide, biases, untied", *HYBRIDS])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + DRAWS))
def test_random_requests(case: str, seed: int, make: Make) -> None:
    assert walk(make, case, seed, 300) > 40


@pytest.mark.parametrize("case", ["lfm2", "lfm2, no attention", *HYBRIDS])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + DRAWS))
def test_random_programs_in_the_language(case: str, seed: int, make: Make) -> None:
    assert soak(make, case, seed, 30) > 30
