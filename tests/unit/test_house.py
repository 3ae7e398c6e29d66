"""The tower stands as its rules say, the checker finds what breaks them, and importing the front door is free."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import house
import pytest
from house_imports import circles, imports

ROOT = Path(__file__).parents[2]


@pytest.mark.whole
def test_the_house_keeps_its_rules():
    run = subprocess.run([sys.executable, str(ROOT / "tests/house.py")], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_import_is_free_of_torch_and_quick():
    code = (
        "import time; t = time.process_time(); import sgl; took = time.process_time() - t; import sys; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules and 'numpy' not in sys.modules; "
        "print(took)"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(took) < 0.1


def test_every_folder_with_python_files_is_a_package():
    """`setup.py` finds packages by their `__init__.py`."""
    folders = {path.parent for floor in house.FLOORS for path in (ROOT / floor).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


# the checker, on small made-up houses

TYPING = "from typing import TYPE_CHECKING\n"
HOUSE = {
    "sgl/__init__.py": "",
    "sgl/cli.py": "import sgl.lang.backend",
    "lang/__init__.py": "",
    "lang/backend.py": "from sgl import runtime\nfrom sgl.runtime import Engine",
    "runtime/__init__.py": "def front():\n    from .engine import Engine",
    "runtime/errors.py": "class E(Exception): pass",
    "runtime/engine.py": "from .loop.core import Core",
    "runtime/cache/__init__.py": "from .row import Row",
    "runtime/cache/row.py": TYPING + "from ..errors import E\nif TYPE_CHECKING:\n    from .tree import Tree",
    "runtime/cache/tree.py": "from . import Row",
    "runtime/loop/core.py": "import numpy\nimport sgl.runtime.cache.tree",
    "grammars/__init__.py": "",
    "common/__init__.py": "",
}
TABLE = {
    "sgl": {"cli": ""},
    "lang": {"backend": ""},
    "runtime": {"errors": "", "cache": "errors", "loop": "errors cache", "engine": "loop"},
    "grammars": {},
    "common": {},
}
SUBTABLE = {"runtime/loop": {"spec": "", "core": "spec", "gpu": "spec core"}}  # `core` is a file
SUBROOMS = {
    "runtime/loop/__init__.py": "from .gpu.step import Step",
    "runtime/loop/spec/names.py": "from sgl.runtime.cache import Row",
    "runtime/loop/gpu/step.py": TYPING + "from ..spec import names\nif TYPE_CHECKING:\n    from ..core import Core",
}
Say = Callable[..., list[str]]


@pytest.fixture
def say(tmp_path: Path) -> Say:
    """What the checker says of HOUSE with some files more, other rows for the runtime, or rows for its rooms' rooms."""

    def said(
        files: dict[str, str], rows: dict[str, str] | None = None, inner: dict[str, dict[str, str]] | None = None
    ) -> list[str]:
        write(tmp_path, HOUSE | files)
        rows = TABLE["runtime"] if rows is None else rows
        return list(house.rooms(tmp_path, TABLE | {"runtime": rows} | (inner or {})))

    return said


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_house_that_keeps_the_rules(say: Say) -> None:
    assert say({}) == []


@pytest.mark.parametrize("module", ["lang", "lang.backend", "cli", "nowhere"])
@pytest.mark.parametrize("how", ["from sgl.{} import x", "import sgl.{}", "def late():\n    from sgl.{} import x"])
def test_no_import_runs_up_the_tower(say: Say, module: str, how: str) -> None:
    (problem,) = say({"runtime/cache/pages.py": how.format(module)})
    assert problem.startswith("runtime/cache/pages.py:") and "may import only runtime, grammars" in problem


@pytest.mark.parametrize("path", ["lang/backend.py", "sgl/cli.py", "grammars/__init__.py", "common/__init__.py"])
@pytest.mark.parametrize("text", ["import torch.nn", "def f():\n    from torch import nn", "import transformers"])
def test_floors_without_torch(say: Say, path: str, text: str) -> None:
    (problem,) = say({path: text})
    assert "must work without it" in problem


@pytest.mark.parametrize(
    "text",
    [
        "from ...loop.core import Core",
        "from ...loop import core",
        "from ... import loop",
        "import sgl.runtime.loop.core",
        "from sgl.runtime.loop.core import Core",
        "from sgl.runtime import loop",
        "def late():\n    from ...loop.core import Core",
        TYPING + "if TYPE_CHECKING:\n    from ...loop.core import Core",
    ],
)
def test_a_room_imports_only_what_its_row_names(say: Say, text: str) -> None:
    (problem,) = say({"runtime/cache/deep/pages.py": text, "runtime/loop/__init__.py": ""})
    assert problem.startswith("runtime/cache/deep/pages.py:") and problem.endswith(
        "the room runtime/cache may import only: errors"
    )


def test_a_file_in_a_floor_is_a_room(say: Say) -> None:
    assert (
        "runtime/errors may import only: no other"
        in say({"runtime/errors.py": "def f():\n    from .cache.row import Row"})[0]
    )


def test_the_front_of_a_floor_is_no_way_round(say: Say) -> None:
    files = {"runtime/__init__.py": "", "runtime/loop/core.py": "from sgl.runtime import Engine"}
    assert "imports runtime; the room runtime/loop" in say(files)[0]
    assert say(files, TABLE["runtime"] | {"loop": "errors cache runtime"}) == []


@pytest.mark.parametrize(
    "text",
    [
        "from ..gpu.step import Step",
        "from .. import core",
        "from ... import loop",
        "def late():\n    from ..gpu import step",
        TYPING + "if TYPE_CHECKING:\n    from ..core import Core",
    ],
)
def test_no_import_runs_up_within_a_room(say: Say, text: str) -> None:
    assert say(SUBROOMS, inner=SUBTABLE) == []
    (problem,) = say(SUBROOMS | {"runtime/loop/spec/late.py": text}, inner=SUBTABLE)
    assert problem.startswith("runtime/loop/spec/late.py:") and problem.endswith(
        "the room runtime/loop/spec may import only: no other"
    )


def test_rooms_within_a_room_have_rows(say: Say) -> None:
    (problem,) = say(SUBROOMS | {"runtime/loop/attic.py": ""}, inner=SUBTABLE)
    assert problem == "runtime/loop/attic has no row in house_rooms.py"
    rows = {"runtime/loop": {"spec": "gpu", "core": "spec", "gpu": "spec core", "attic": "", "cellar": ""}}
    assert say(SUBROOMS, inner=rows) == [
        "house_rooms.py has runtime/loop/cellar, the tree has not",
        "house_rooms.py: runtime/loop/spec names gpu, which does not stand above it",
    ]


PLANTED = {
    "a word in a name": ({"runtime/cache/twin.py": ""}, "“twin” is in 1 names"),
    "a word in a docstring": ({"sgl/cli.py": '"""It is told."""'}, "sgl/cli.py:1: “told”"),
    "a word in a guide": ({house.GUIDES[0]: "It is told."}, f"{house.GUIDES[0]}: “told”"),
    "a 21st file": ({f"runtime/cache/page{n}.py": "" for n in range(19)}, "runtime/cache has 21 files, at most 20"),
    "an import of a floor": ({"runtime/cache/pages.py": "from sgl.lang import backend"}, "may import only runtime, gr"),
    "an import of a room": ({"runtime/cache/pages.py": "from ..loop import core"}, "the room runtime/cache may import"),
    "an import of a subroom": ({"runtime/loop/spec/late.py": "from ..gpu import step"}, "the room runtime/loop/spec m"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_the_script_fails_on_what_is_planted(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, (files, said) = TABLE | SUBTABLE, PLANTED[what]
    write(tmp_path, dict.fromkeys((*house.GUIDES, house.READING), "It runs.") | HOUSE | SUBROOMS)
    assert house.main(tmp_path, table) == 0 and "runtime/loop 3 · arrows: all downwards" in capsys.readouterr().out
    write(tmp_path, files)
    assert house.main(tmp_path, table) == 1 and said in capsys.readouterr().out


@pytest.mark.parametrize("how", ["from .{} import x", "def late():\n    from .{} import x"])
def test_no_files_import_each_other(say: Say, how: str) -> None:
    ring = {
        "runtime/cache/a.py": how.format("b"),
        "runtime/cache/b.py": how.format("c"),
        "runtime/cache/c.py": how.format("a"),
    }
    (problem,) = say(ring)
    assert problem.startswith("a circle of files: ") and all(f"runtime.cache.{name} -> " in problem for name in "abc")


def test_a_circle_through_the_front_of_a_room(say: Say) -> None:
    assert "runtime.cache -> " in say({"runtime/cache/row.py": "from . import Row"})[0]


def circles_said(root: Path, most: int) -> list[str]:
    return [line.strip() for line in house.typing_circles(circles(imports(root)), most)]


def test_circles_that_only_type_checkers_see_are_counted(say: Say, tmp_path: Path) -> None:
    """HOUSE has one: a room, its row and its tree."""
    assert say({}) == [] and circles_said(tmp_path, 1) == []
    problem, one = circles_said(tmp_path, 0)
    assert problem.startswith("1 circles of files") and one == "runtime.cache runtime.cache.row runtime.cache.tree"
    planted = {
        "runtime/loop/a.py": TYPING + "if TYPE_CHECKING:\n    from .b import B",
        "runtime/loop/b.py": "from .a import A",
    }
    assert say(planted) == [] and circles_said(tmp_path, 2) == []
    assert circles_said(tmp_path, 1)[1:] == [
        "runtime.cache runtime.cache.row runtime.cache.tree",
        "runtime.loop.a runtime.loop.b",
    ]


def test_circles_that_share_a_file_are_one(say: Say, tmp_path: Path) -> None:
    files = {"runtime/cache/row.py": "", "runtime/loop/hub.py": TYPING + "if TYPE_CHECKING:\n    from . import a, b"}
    say(files | {f"runtime/loop/{name}.py": "from .hub import Hub" for name in "ab"})
    assert circles_said(tmp_path, 0)[1:] == ["runtime.loop.a runtime.loop.b runtime.loop.hub"]


def test_every_room_has_a_row_and_every_row_a_room(say: Say) -> None:
    assert say({}, TABLE["runtime"] | {"attic": ""}) == ["house_rooms.py has runtime/attic, the tree has not"]
    assert say({"runtime/text/stops.py": ""}) == ["runtime/text has no row in house_rooms.py"]


def test_a_row_names_what_stands_above_it(say: Say) -> None:
    problems = say({}, {"errors": "", "cache": "errors loop", "loop": "errors cache", "engine": "loop"})
    assert problems == ["house_rooms.py: runtime/cache names loop, which does not stand above it"]


def test_few_files_lie_loose(say: Say) -> None:
    files = {f"runtime/extra{n}.py": "" for n in range(3)}
    rows = TABLE["runtime"] | {f"extra{n}": "" for n in range(3)}
    assert "5 files lie loose in runtime/" in say(files, rows)[-1] and "2 may" in say(files, rows)[-1]


def test_the_guided_path_is_there_and_short(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "lang").mkdir()
    page, long = tmp_path / house.READING, tmp_path / "lang/ir.py"
    page.write_text("[a](../lang/ir.py) and [b](reference.md)")
    assert "lang/ir.py, which is not there" in next(house.reading(tmp_path))
    long.write_text("\n" * house.MOST_READ)
    assert list(house.reading(tmp_path)) == []
    long.write_text("\n" * (house.MOST_READ + 1))
    assert "1 files of 6001 lines" in next(house.reading(tmp_path))
    long.write_text("")
    page.write_text("[a](../lang/ir.py) " * (house.MOST_PAGES + 1))
    assert "31 files of 0 lines" in next(house.reading(tmp_path))


def test_long_files_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lang").mkdir()
    (tmp_path / "lang/ir.py").write_text("x = 1\n" * (house.LONGEST_FILE + 1))
    assert list(house.sizes(tmp_path)) == ["lang/ir.py has 601 lines; split it"]
    assert len(capsys.readouterr().out.splitlines()) == len(house.FLOORS)
