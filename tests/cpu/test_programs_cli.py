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
    for expected in (
        f"torch {torch.__version__.split('+')[0]}",
        "dtype ",
        "threads ",
        "masks in C: ",
        "MB of weights",
        "Programs can run here.",
    ):
        assert expected in said


def test_doctor_fails_without_a_model(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sgl.runtime.loading.model_files.locate_model.BUNDLED", tmp_path)
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert f"PROBLEM: the bundled model is not in {tmp_path}" in said and "1 problem above" in said


def declare(monkeypatch, *requirements):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: list(requirements))


def test_doctor_names_what_is_missing_and_how_to_get_it(capsys, monkeypatch):
    declare(monkeypatch, "numpy>=1.26", "nosuchthing>=2; extra == 'server'", "httpx>=0.27; extra == 'openai'")
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "server: needs nosuchthing: pip install 'sgl[server]'" in said and "openai: httpx " in said


def test_doctor_fails_with_a_package_that_is_too_old(capsys, monkeypatch):
    declare(monkeypatch, "numpy>=99")
    assert cli.main(["doctor"]) == 1
    assert "PROBLEM: numpy>=99 is required, " in capsys.readouterr().out


def test_unknown_commands_and_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["doktor"])
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert "sgl 0.1.0" in capsys.readouterr().out
