"""`sgl run` for newcomers: what cannot be started, and what an error looks like."""

from __future__ import annotations

import argparse

import pytest

import sgl
from sgl import cli
from sgl.commands.run_command import add_parser
from sgl.lang.backends.scripted.scripted_backend import Scripted
from sgl.tracebacks import print_brief, user_frames


@sgl.function
def halves(s, x):
    s += "one" + sgl.gen("a")
    return 1 / x


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")


def test_a_traceback_has_the_program_s_lines_only(capsys):
    error = error_of(lambda: halves.run(x=0, backend=Scripted({"a": "two"})))
    print_brief(error, "--all")
    said = capsys.readouterr().err
    assert said.count("File ") == said.count(f'File "{__file__}"') == 3
    assert "return 1 / x" in said
    assert "ZeroDivisionError" in said
    assert "calls inside sgl are left out; --all shows them)" in said


def test_what_led_to_an_error_is_told_too(capsys):
    backend = Scripted({"a": ValueError("the deepest reason")})
    state = halves.run(x=1, backend=backend)
    print_brief(error_of(lambda: state["a"]), "--all")
    said = capsys.readouterr().err
    assert "ValueError: the deepest reason" in said
    assert said.count("File ") == said.count(f'File "{__file__}"')


def test_libraries_that_the_program_calls_are_shown(capsys):
    import json

    print_brief(error_of(lambda: json.loads("{")), "--all")
    said = capsys.readouterr().err
    assert said.count("json") > 2
    assert "left out" not in said


def test_an_error_without_a_line_of_the_program():
    assert user_frames(error_of(lambda: 1 / 0))
    assert not user_frames(ValueError("never raised"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "no file 'nothing.py' in "),
        (["nothing"], "no file 'nothing'; for a module, say -m nothing"),
        (["."], "the folder '.' has no __main__.py; give one of its files"),
    ],
)
def test_what_cannot_be_started(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"sgl run: {said}")


def test_only_the_program_is_asked_for(capsys):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["run"])
    assert capsys.readouterr().err.endswith("the following arguments are required: PROGRAM\n")
    options = parser.parse_args(["run", "--model", "x", "a.py", "--model", "y"])
    assert (options.model, options.program, options.arguments) == ("x", "a.py", ["--model", "y"])
