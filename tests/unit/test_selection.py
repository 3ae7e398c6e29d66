"""The short selection of tests, and which rest CI runs: what is left out, and that nothing is forgotten."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import selection
from selection import covering, durations, one_way, thinned, values

ROOT = Path(__file__).parent.parent.parent


def case(*ids: str) -> Any:
    return SimpleNamespace(callspec=SimpleNamespace(_idlist=list(ids)))


def ids_of(cases: list[Any]) -> list[str]:
    return ["-".join(each.callspec._idlist) for each in cases]


@pytest.mark.parametrize("sizes", [(1,), (4,), (3, 2), (5, 5), (4, 3, 2), (2, 2, 2, 2)])
def test_a_cover_has_each_value_and_is_as_small_as_the_longest_list(sizes: tuple[int, ...]) -> None:
    cases = [case()]
    for place, size in enumerate(sizes):
        cases = [case(*each.callspec._idlist, f"{place}{value}") for each in cases for value in range(size)]
    chosen = covering(cases)
    assert set().union(*map(values, chosen)) == set().union(*map(values, cases))
    assert len(chosen) == max(sizes) and chosen == [each for each in cases if each in chosen]


def test_lists_without_a_whole_product_are_covered_too() -> None:
    assert ids_of(covering([case("a", "x"), case("b", "x"), case("b", "y")])) == ["a-x", "b-y"]


def test_few_of_many_are_evenly_distributed() -> None:
    assert [thinned(range(10), most) for most in (1, 2, 5, 10, 99)] == [
        [5],
        [2, 7],
        [1, 3, 5, 7, 9],
        list(range(10)),
        list(range(10)),
    ]


def test_engines_step_in_one_way_in_turns() -> None:
    cases = [case(way, name) for way in ("in-step", "ahead") for name in "abc"]
    assert ids_of(one_way(cases, 0)) == ["in-step-a", "ahead-b", "in-step-c"]
    assert ids_of(one_way(cases, 1)) == ["ahead-a", "in-step-b", "ahead-c"]


TESTS = """
import pytest

@pytest.mark.whole
def test_left(): pass

@pytest.mark.few(2)
@pytest.mark.parametrize("b", "xy")
@pytest.mark.parametrize("a", range(4))
def test_few(a, b): pass

@pytest.mark.parametrize("b", "xy")
@pytest.mark.parametrize("a", "xy")
def test_each(a, b): pass

@pytest.mark.product
@pytest.mark.parametrize("b", "xy")
@pytest.mark.parametrize("a", "xy")
def test_all(a, b): pass

@pytest.mark.parametrize("a", [1, pytest.param(2, marks=pytest.mark.whole)])
def test_one(a): pass
"""


@pytest.mark.parametrize(
    ("arguments", "ran", "left"),
    [
        ((), 9, 10),
        (("--whole",), 19, 0),
        (("--rest",), 10, 0),
        (("test_it.py::test_left",), 1, 0),
        (("-p", "xdist", "-n", "2"), 9, 10),
    ],
    ids=["short", "whole", "rest", "by its id", "in two processes"],
)
def test_options_choose(arguments: tuple[str, ...], ran: int, left: int, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n whole\n few\n product\n stepping\n")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "-p", "selection", "-p", "no:cacheprovider", *arguments]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # their imports take longer than all else
    said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True).stdout
    assert f"{ran} passed" in said, said
    assert (f"{left} more tests run with `make test-all`" in said) == bool(left), said


def item(file: str) -> Any:
    return SimpleNamespace(nodeid=f"{file}::test")


def test_long_files_come_first_and_new_ones_as_average_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "durations", lambda: {"a": (1.0, 9.0), "b": (4.0, 4.0), "c": (2.5, 1.0)})
    files = ["new", "a", "a", "b", "c"]
    for whole, expected in ((False, ["b", "new", "c", "a", "a"]), (True, ["a", "a", "new", "b", "c"])):
        items = [item(file) for file in files]
        selection.longest_first(items, whole)
        assert [each.nodeid.partition("::")[0] for each in items] == expected


def test_what_ran_is_recorded_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "DURATIONS", tmp_path / "durations.txt")
    selection.DURATIONS.write_text("   1.0    2.0 a\n   3.0    4.0 b\n")
    for whole, expected in (
        (False, "   5.5    5.5 a\n   3.0    4.0 b\n"),
        (True, "   5.5    5.5 a\n   3.0    4.0 b\n"),
    ):
        recorder = selection.Recorder(whole)
        for seconds in (5.0, 0.5):
            recorder.pytest_runtest_logreport(SimpleNamespace(nodeid="a::test", duration=seconds))
        recorder.pytest_sessionfinish()
        assert selection.DURATIONS.read_text() == expected


def test_recorded_files_are_there() -> None:
    found = durations()
    assert list(found) == sorted(found)
    assert not [file for file in found if not (ROOT / file).is_file()]
    assert all(0 <= short <= whole for short, whole in found.values())


@pytest.fixture
def rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changed_rooms", ROOT / ".ci" / "changed_rooms.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_room_is_there_and_each_glob_finds_tests(rooms: ModuleType) -> None:
    for folders, globs in rooms.ROOMS:
        assert all((ROOT / folder).exists() for folder in folders.split())
        assert all(list((ROOT / "tests").glob(f"{glob}.py")) for glob in globs.split()), globs


def test_what_the_short_selection_leaves_out_belongs_to_a_room(rooms: ModuleType) -> None:
    everything = rooms.tests_of([file for folders, _ in rooms.ROOMS for file in folders.split()])
    assert not [file for file, (short, whole) in durations().items() if whole > short + 1 and file not in everything]


def test_ci_runs_no_more_than_it_has_time_for(rooms: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rooms, "durations", lambda: {"a": (1.0, 9.0), "b": (1.0, 1.0), "c": (2.0, 30.0), "d": (0.0, 2.0)}
    )
    assert rooms.affordable(["a", "b", "c", "d", "e"], 10.0) == ["a", "d"]
    always, count = rooms.ALWAYS, len(rooms.ALWAYS)
    found = rooms.tests_of(["runtime/kernels/x.py"])
    assert found[:count] == always and found[count].startswith("tests/cpu/")
    found = rooms.tests_of(["docs/none.md", "tests/unit/test_selection.py"])
    assert found[:count] == always and found[count] == "tests/unit/test_selection.py"


def test_ci_runs_everything_where_there_is_no_history(rooms: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*arguments: str) -> str:
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(rooms, "git", no_git)
    assert {"runtime/engine.py", "tests/unit/test_selection.py"} <= set(rooms.changed())
