"""The soak in short: benchmarks/soak.py itself, a real server, its engine killed and stopped in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.whole
@pytest.mark.slow
def test_the_server_holds_out() -> None:
    words = ["--requests", "160", "--seconds", "60", "--warm", "80", "--kill", "4", "--stop", "2", "--at-once", "12"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SOAK), *words], capture_output=True, text=True, env=environment, timeout=200
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "held out" in done.stdout and "engine killed" in done.stdout
