"""The command line tells the truth about this machine."""

from __future__ import annotations

import pytest
import torch
from checkpoints import write_checkpoint

from sgl import cli


def test_doctor_tells_what_is_there(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sgl.runtime.engine.NANO", write_checkpoint(tmp_path / "model", tokenizer=True))
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    for expected in (f"torch {torch.__version__.split('+')[0]}", "dtype ", "threads ", "core is in use", "MB of weights"):
        assert expected in said


def test_doctor_fails_without_a_model(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sgl.runtime.engine.NANO", tmp_path)
    assert cli.main(["doctor"]) == 1
    assert f"PROBLEM: FileNotFoundError: the bundled model is not in {tmp_path}" in capsys.readouterr().out


def test_unknown_commands_and_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["doktor"])
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert "sgl 0.1.0" in capsys.readouterr().out
