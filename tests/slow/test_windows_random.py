"""Many random requests on models with windowed layers and too few pages: SGL_DRAWS=20 says how many walks, without it
none.

The short form is in tests/cpu/test_windows_engine.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from windows_rig import EVERY, Make, make, paths, walk

__all__ = ["make", "paths"]

DRAWS = int(os.environ.get("SGL_DRAWS", "0"))
FIRST = int(os.environ.get("SGL_FIRST_DRAW", "1000"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRAWS, reason="minutes of walking: SGL_DRAWS=20 takes 20 walks of each model"),
]


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + DRAWS))
def test_random_requests(case: str, seed: int, make: Make) -> None:
    assert walk(make, case, seed, 300) > 40
