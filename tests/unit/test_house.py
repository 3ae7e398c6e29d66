"""The tower's arrows hold, and importing the front door is free."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_run_downwards_only():
    run = subprocess.run([sys.executable, str(ROOT / "tests/house.py")], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_import_is_free_of_torch_and_quick():
    code = (
        "import time; t = time.perf_counter(); import sgl; took = time.perf_counter() - t; import sys; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules and 'numpy' not in sys.modules; print(took)"
    )
    took = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert min(took) < 0.1


def test_every_folder_with_python_files_is_a_listed_package():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"sgl"}
    for floor in ("lang", "runtime", "grammars"):
        for init in (ROOT / floor).rglob("__init__.py"):
            found.add("sgl." + ".".join(init.parent.relative_to(ROOT).parts))
    assert found == listed
