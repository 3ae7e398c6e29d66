"""mypy knows the types of the public API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = """
[mypy]
python_version = 3.11
warn_unused_ignores = true
[mypy-torch.*,transformers.*,numpy.*,triton.*,pydantic.*,pydantic_core.*,httpx.*,openai.*,anthropic.*,litellm.*,fastapi.*,sgl.runtime.*,sgl.grammars.*]
follow_imports = skip
"""


def test_mypy_knows_the_public_types(tmp_path):
    package = tmp_path / "sgl"
    package.mkdir()
    for source in (ROOT / "sgl").iterdir():
        (package / source.name).symlink_to(source)
    for floor in ("lang", "runtime", "grammars"):
        (package / floor).symlink_to(ROOT / floor)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--follow-imports=silent",
        str(ROOT / "tests/typing/public_api.py"),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"MYPYPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
