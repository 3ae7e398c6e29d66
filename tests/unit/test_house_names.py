"""The checker of names finds an old word in each kind of name, a shared class name and a full folder."""

from __future__ import annotations

from pathlib import Path

import house
import house_names
import pytest


def said(root: Path, files: dict[str, str], left: dict[str, int] | None = None, most_shared: int = 0) -> list[str]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return list(house_names.problems(house_names.names(root), left or {}, most_shared))


@pytest.mark.parametrize(
    ("path", "text", "what"),
    [
        ("runtime/cache/law_pages.py", "", "“law” is in 1 names, at most 0 (better: reference): file law_pages"),
        ("runtime/csrc/one_row.c", "", "“one_row” is in 1 names"),
        ("runtime/few_bits/pages.py", "", "folder few_bits (runtime/few_bits)"),
        ("runtime/pages.py", "class LonePage:\n    pass", "class LonePage (runtime/pages.py:1)"),
        ("runtime/pages.py", "\ndef _told_of(page):\n    pass", "function _told_of (runtime/pages.py:2)"),
        (
            "runtime/pages.py",
            "class Pages:\n    def take(self, *, beside): ...",
            "parameter beside (runtime/pages.py:2)",
        ),
        ("lang/pages.py", "take = lambda twin: twin", "parameter twin"),
    ],
)
def test_a_planted_word(tmp_path: Path, path: str, text: str, what: str) -> None:
    (problem,) = said(tmp_path, {path: text})
    assert what in problem


@pytest.mark.parametrize(
    "text", ["lawful = 1", "def kind(rows, one_by_row): ...", "told = {'law': 1}", "class Lawn: ..."]
)
def test_other_words_variables_and_keys(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, {"lang/page.py": text}) == []


def test_names_that_are_left_may_only_become_fewer(tmp_path: Path) -> None:
    files = {"lang/page.py": "def told(): ...\ndef told_more(): ..."}
    assert said(tmp_path, files, {"told": 2}) == []
    assert said(tmp_path, files, {"told": 1})[0].startswith("“told” is in 2 names, at most 1")


def test_every_word_that_is_left_is_a_forbidden_one() -> None:
    assert house_names.LEFT.keys() <= house_names.INSTEAD.keys()


def test_a_second_class_of_a_general_name(tmp_path: Path) -> None:
    files = {"runtime/loop/core.py": "class Plan: ...", "lang/graph.py": "class Plan: ..."}
    assert "Plan is in more than one module: lang/graph.py, runtime/loop/core.py" in said(tmp_path, files)[0]
    assert said(tmp_path, {"lang/graph.py": "class Graph: ..."}) == []


def test_class_names_in_several_modules_are_counted(tmp_path: Path) -> None:
    files = {"runtime/tools.py": "class Tool: ...", "lang/tools.py": "class Tool: ..."}
    assert said(tmp_path, files, most_shared=1) == []
    assert said(tmp_path, files) == [
        "1 class names are in more than one module, at most 0: Tool: lang/tools.py, runtime/tools.py"
    ]


def test_a_planted_21st_file(tmp_path: Path) -> None:
    folder = tmp_path / "runtime/csrc"
    folder.mkdir(parents=True)
    for name in ["__init__.py", "notes.md", *(f"{n}.c" for n in range(10)), *(f"{n}.h" for n in range(10))]:
        (folder / name).touch()
    assert list(house.folders(tmp_path)) == []
    (folder / "more.py").touch()
    assert list(house.folders(tmp_path)) == [
        "runtime/csrc has 21 files, at most 20; make a folder in it for one of its ideas"
    ]
    (tmp_path / house.LARGE[0]).parent.mkdir()
    folder.rename(tmp_path / house.LARGE[0])
    assert list(house.folders(tmp_path)) == []
