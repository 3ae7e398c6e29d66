"""mypy, and pyright where it is installed, know the types of the public API."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mypy.modulefinder import get_search_dirs

import sgl
from sgl.lang.program.batch_options import BatchDisplayOptions, BatchOptions
from sgl.lang.program.batch_runs import OPTION_NAMES

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "tests/typing").glob("*.py"))
FLOORS = ("lang", "runtime", "grammars", "common")
CONFIG = """
[mypy]
python_version = 3.11
warn_unused_ignores = true
[mypy-torch.*,transformers.*,numpy.*,triton.*,pydantic_core.*,httpx.*,openai.*,anthropic.*,litellm.*,fastapi.*,sgl.grammars.*,sgl.runtime.models.*,sgl.runtime.executor.*,sgl.runtime.attention.*,sgl.runtime.layers.*]
follow_imports = skip
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the package as links, which `make` puts on the path for tools that run nothing."""
    for name in ("sgl", *FLOORS):
        (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run(["make", "-s", "-f", ROOT / "Makefile", "-C", tmp_path, "types"], check=True)
    return tmp_path / "build/types"


@pytest.mark.whole
def test_mypy_knows_the_public_types(folder, tmp_path):
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--follow-imports=silent", *PROGRAMS]
    done = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(folder), "PATH": ""}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("pyright"), reason="needs pyright")
def test_pyright_sees_programs_whole(folder):
    programs = [program for program in PROGRAMS if program.stem in ("agent", "invoices", "reviews")]
    (folder / "pyrightconfig.json").write_text('{"reportPossiblyUnboundVariable": "error"}')
    for program in programs:
        shutil.copy(program, folder)
    done = subprocess.run(
        ["pyright", "--pythonpath", sys.executable], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_checkers_know_the_options_that_batches_take():
    assert set(BatchOptions.__annotations__) == OPTION_NAMES | {"num_threads"}
    more = {*BatchDisplayOptions.__annotations__} - {*BatchOptions.__annotations__} | {
        "num_threads",
        "return_exceptions",
        "generator_style",
    }
    assert more <= set(inspect.signature(sgl.SglFunction.run_batch).parameters)


def test_a_fresh_environment_of_the_makefile_shows_the_package(folder, tmp_path):
    """What `make` writes beside the editable install, whose import hook type checkers cannot run."""
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    planned = subprocess.run(
        ["make", "-nB", "-f", ROOT / "Makefile", ".venv/.usable"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (write,) = [line for line in planned.stdout.splitlines() if "sgl_folders.pth" in line]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    subprocess.run(write, shell=True, cwd=tmp_path, check=True)
    python = tmp_path / ".venv/bin/python"
    find = "import importlib.util as u; print(u.find_spec('sgl').origin, u.find_spec('sgl.lang.sgl_function').origin)"
    found = subprocess.run(
        [python, "-c", find], cwd="/", env={"PATH": ""}, capture_output=True, text=True, check=True
    ).stdout.split()
    assert found == [str(folder / "sgl/__init__.py"), str(folder / "sgl/lang/sgl_function.py")]
    assert any(str(folder) in roots for roots in get_search_dirs(str(python)))
