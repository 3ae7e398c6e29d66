"""docs/commands.md says what is true: its commands run in a shell, on the
bundled model, and print what stands there.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/commands.md"


PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def printed(command: str, folder: Path) -> str:
    ran = subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": PATH}, capture_output=True, text=True
    )
    return ran.stdout + ran.stderr


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("sgl", path=PATH) is None, reason="sgl is not installed as a command here")
def test_the_commands_print_what_the_page_says(tmp_path):
    """`$ command`, which `>` continues, and behind it what it prints, where `...` stands for anything."""
    for session in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.S):
        for typed, expected in re.findall(r"^\$ (.*\n(?:>.*\n)*)((?:(?!\$ ).*\n)*)", session, re.M):
            output = printed(re.sub("^> ?", "", typed, flags=re.M), tmp_path)
            assert doctest.OutputChecker().check_output(expected, output, doctest.ELLIPSIS), output
