"""Many random configurations of each family, and each of its keys: SGL_DRAWS=20 says how many, without it none.

The short form, a few fixed draws of each, is tests/cpu/test_families_walk.py.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from family_walk import walk
from family_walk_draws import Draw, draw
from family_walk_keys import variants
from test_families_walk import KNOWN, outcome

DRAWS = int(os.environ.get("SGL_DRAWS", "0"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRAWS, reason="hours of walking: SGL_DRAWS=20 takes 20 draws of each family"),
]

FIRST = int(os.environ.get("SGL_FIRST_DRAW", "1000"))


@pytest.mark.parametrize("architecture", KNOWN)
def test_random_configurations(architecture: str, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + DRAWS):
        try:
            found[walk(draw(architecture, seed), tmp_path / str(seed), seed).what] += 1
        except Exception as error:
            raise AssertionError(f"draw({architecture!r}, {seed}): {error!r}") from error
    assert found["equal"] or DRAWS < 20, found


@pytest.mark.parametrize("architecture", KNOWN)
def test_every_key(architecture: str, tmp_path: Path) -> None:
    for index, (what, values) in enumerate(variants(architecture)):
        outcome(Draw(architecture, values), tmp_path / str(index), what)
