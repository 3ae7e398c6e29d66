"""The checker of docstrings, comments and messages finds words that prose may not use, and leaves code alone."""

from __future__ import annotations

from pathlib import Path

import house_comments
import pytest


def said(root: Path, text: str, name: str = "runtime/pages.py", left: dict[str, int] | None = None) -> list[str]:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    return [line.strip() for line in house_comments.problems(root, left or {})]


@pytest.mark.parametrize(
    "text",
    [
        '"""Pages lie in memory."""',
        'def f():\n    """Take it.\n\n    A row of its\n    own.\n    """',
        "x = 1  # beside it",
        "# a page of its\n# own is here\n",
        'raise ValueError("nobody " "waits")',
        'raise ValueError(f"{x} is told to {y}")',
    ],
)
def test_a_planted_word(tmp_path: Path, text: str) -> None:
    head, place = said(tmp_path, text)
    assert head == "runtime: 1 words that prose may not use, at most 0:"
    assert place.startswith("runtime/pages.py:") and "better:" in place
    assert said(tmp_path, text, left={"runtime": 1}) == []


@pytest.mark.parametrize("comment", ["/* the twin\n * of it */", "int x; // behind it"])
def test_a_planted_word_in_c(tmp_path: Path, comment: str) -> None:
    assert len(said(tmp_path, comment, "runtime/csrc/pages.h")) == 2


@pytest.mark.parametrize(
    "text",
    [
        '"""`told()` is a method."""',
        'x = {"told": 1}["told"]',
        "told = lone = law = 1",
        "# first\nx = 1\n# of its\nown = 2",
        '"""Behind a proxy."""',
    ],
)
def test_code_and_keys_are_no_prose(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, text) == []


def test_the_counts_of_all_floors_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(tmp_path, '"""Told, told."""')
    assert "runtime 2 (at most 0), grammars 0 (at most 0)" in capsys.readouterr().out
