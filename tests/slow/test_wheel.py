"""The wheel and the sdist are whole: built, installed into a fresh environment, and used there."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sgl
assert "site-packages" in sgl.__file__, sgl.__file__

@sgl.function
def ask(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0, regex="[a-z]+"))

state = ask.run("Say hello.")
assert state["answer"].isalpha(), state["answer"]
from sgl import grammars
print("core:", grammars.core_name())
"""


QUICK = """#!/bin/sh
# the compiler, which optimises less: what is built here is whole, not fast
for argument; do
    shift
    [ "$argument" = -O3 ] && argument=-O0
    set -- "$@" "$argument"
done
exec cc "$@"
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=os.environ | variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Both distributions; `build` makes the wheel from the sdist, so a file missing there shows."""
    out = tmp_path_factory.mktemp("dist")
    quick = tmp_path_factory.mktemp("quick") / "cc"
    quick.write_text(QUICK)
    quick.chmod(0o755)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out, CC=str(quick))
    return out


@pytest.mark.whole
def test_the_wheel_runs_a_program_in_a_fresh_environment(built, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env/bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])  # torch and friends, not our checkout
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", next(built.glob("*.whl")), cwd=tmp_path)
    assert "core:" in run(python, "-c", PROGRAM, cwd=tmp_path)
    assert "sgl" in run(tmp_path / "env/bin/sgl", "doctor", cwd=tmp_path)


def test_what_the_distributions_hold(built):
    wheel = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sdist = set(archive.getnames())
    for name in (
        "sgl/py.typed",
        "sgl/lang/report/page.html",
        "sgl/lang/report/main.js",
        "sgl/common/child_process/parent_death.py",
        "sgl/runtime/nano/config.json",
        "sgl/runtime/nano/tokenizer.json",
        "sgl/runtime/nano/adapters/listings/adapter_model.safetensors",
    ):
        assert name in wheel
    assert any(name.endswith("LICENSE") for name in wheel) and any(name.endswith("NOTICE") for name in wheel)
    for name in (
        "grammars/core/grammar_core_unity.c",
        "grammars/core/base/grammar_core_types.h",
        "runtime/csrc/cpu_kernels_unity.c",
        "constraints.txt",
    ):
        assert any(found.endswith(name) for found in sdist)
    for source in (
        path
        for folder in ("runtime/csrc", "grammars/core")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".h", ".inc")
    ):
        assert any(found.endswith(source.relative_to(ROOT).as_posix()) for found in sdist)
    assert not any("csrc" in name or name.endswith((".c", ".h", ".inc")) for name in wheel)
    assert not any("/tests/" in name for name in wheel)
