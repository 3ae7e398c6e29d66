"""`sgl check` at the command line: formats, choices of rules, exit status, speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sgl import cli

GOOD = 'import sgl\n\n@sgl.function\ndef qa(s):\n    s += sgl.gen("a")\n'
BAD = GOOD + '\ts["b"]\n'.replace("\t", "    ")
WARNING = 'import sgl\nX = sgl.gen("a", choices=["x", "x"])\n'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "bad.py").write_text(BAD)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "warning.py").write_text(WARNING)
    (tmp_path / "notes.txt").write_text(BAD)
    return tmp_path


def check(*arguments: object) -> int:
    return cli.main(["check", *map(str, arguments)])


def test_text(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(files / "bad.py") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{files / 'bad.py'}:6:5: SGL101 no gen, select or var_scope has made 'b' before this; known: a",
        '    6 |     s["b"]',
        "      |     ^",
        "1 error",
    ]
    assert check(files / "good.py") == 0
    assert capsys.readouterr().out == "no problems found\n"


def test_folders(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(files) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "1 error, 1 warning" and "hidden" not in out
    assert check(files / "inner") == 0
    assert check(files / "inner", "--strict") == 1


def test_a_folder_without_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("no program")
    assert check(tmp_path) == 2
    assert f"no Python file and no notebook below {tmp_path}" in capsys.readouterr().err


def test_rules_are_chosen(files: Path) -> None:
    assert check(files, "--ignore", "SGL101") == 0
    assert check(files, "--ignore", "SGL101", "--strict") == 1
    assert check(files, "--select", "sgl4", "--strict") == 1
    assert check(files, "--select", "SGL2,SGL5", "--strict") == 0
    with pytest.raises(SystemExit) as error:
        check(files, "--select", "E501")
    assert error.value.code == 2


def test_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(files, "--format", "json") == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["rule"], first["line"], first["column"], first["severity"]) == ("SGL101", 6, 5, "error")
    assert (second["rule"], second["severity"], second["cell"]) == ("SGL404", "warning", None)


def test_github(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(files / "bad.py", "--format", "github") == 1
    line = capsys.readouterr().out.strip()
    assert line.startswith(f"::error file={files / 'bad.py'},line=6,col=5,title=SGL101::SGL101 no gen")


def test_what_cannot_be_read(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "book.ipynb").write_text("no notebook")
    (files / "bytes.py").write_bytes(b"\xff\xfe\x00")
    assert check(files / "nothing.py") == 2
    assert check(files / "book.ipynb") == 2
    assert check(files) == 2
    captured = capsys.readouterr()
    assert "bytes.py cannot be read" in captured.err and "SGL101" in captured.out
    (files / "broken.py").write_text("import sgl\ndef f(:\n")
    assert check(files / "broken.py") == 1
    assert "broken.py:2:7: SGL001 cannot be parsed" in capsys.readouterr().out


def test_programs_of_this_repository_are_clean() -> None:
    root = Path(__file__).parents[2]
    assert check(root / "examples", root / "tutorials", root / "benchmarks", "--strict", "--ignore", "SGL602") == 0


def big_program() -> str:
    parts = ["import sgl\n"]
    for number in range(90):
        parts.append(
            f"@sgl.function\ndef program_{number}(s, question, rounds):\n    s += sgl.system('x') + "
            "sgl.user(question)\n"
            f"    with s.assistant():\n        s += sgl.gen('a{number}', max_tokens=64, stop='.')\n"
            "    forks = s.fork(3)\n    for f in forks:\n        f += sgl.user('why?') + "
            "sgl.assistant(sgl.gen('why'))\n"
            "    forks.join()\n    for i in range(rounds):\n        s += sgl.assistant(sgl.gen('more') + "
            f"s['a{number}'])\n"
            f"    return s['why']\n"
        )
    return "".join(parts)


def test_it_is_fast_and_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(big_program())
    assert len(big_program().splitlines()) > 1_000
    script = (
        "import sys, time\nfrom sgl.lang.check import check_path\n"
        f"check_path({str(Path(__file__))!r})\n"
        "spent = []\nfor _ in range(3):\n"
        f"    start = time.process_time()\n    assert check_path({str(tmp_path / 'big.py')!r}) == []\n"
        "    spent.append(time.process_time() - start)\n"
        "print(min(spent), 'torch' in sys.modules)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    seconds, torch = answer.stdout.split()
    assert torch == "False" and float(seconds) < 0.3, answer.stdout
