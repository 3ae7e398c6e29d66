"""`sgl doctor | head -1`: a command whose reader has gone ends without a
word, with the status that other tools have.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sgl import cli


@pytest.mark.whole
@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        (["doctor"], ""),
        (["doctor"], "1"),
        (["--help"], ""),
        (["grammar", "--regex", "a+"], ""),
        (["grammar", "--regex", "a+"], "1"),
    ],
)
def test_a_command_ends_quietly_where_its_reader_has_gone(arguments, unbuffered):
    read, write = os.pipe()
    os.close(read)
    command, env = [sys.executable, "-m", "sgl", *arguments], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, env=env, stdout=write, stderr=subprocess.PIPE, timeout=120)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_broken_pipe_is_an_error_as_before(monkeypatch):
    def broken(_: object) -> int:
        raise BrokenPipeError("a server's")

    read, write = os.pipe()
    monkeypatch.setattr(cli, "_run", broken)
    with os.fdopen(write, "w") as output, os.fdopen(read):
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(BrokenPipeError, match="a server's"):
            cli.main([])
