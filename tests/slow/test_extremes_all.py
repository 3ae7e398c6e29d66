"""Every odd value in every field, through engine, program and server: SGL_WALK=1 asks for these minutes.

The short form is tests/cpu/test_extremes.py and test_server_extremes.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("SGL_WALK"), reason="minutes of walking: SGL_WALK=1"),
]

TESTS = Path(__file__).parents[1] / "cpu"


def test_every_value_in_every_field():
    files = [str(TESTS / name) for name in ("test_extremes.py", "test_server_extremes.py")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *files],
        env=os.environ | {"SGL_FUZZ_CASES": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:]
