"""All forms of the layers' kernels compile for a GPU; tests/cpu/test_layer_kernels.py compiles a few of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif("SGL_COMPILE" not in os.environ, reason="minutes of compiling: SGL_COMPILE=1")
def test_all_forms_compile(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DISABLE_LINE_INFO": "1"}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).parents[1] / "cpu" / "compile_layer_kernels.py"
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
