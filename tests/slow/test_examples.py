"""Every example runs by itself, as a user would run it, and says something true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quickstart_prints_json(tmp_path):
    booking = json.loads(run("quickstart.py", cwd=tmp_path))
    assert booking["city"] == "Lisbon" and booking["guests"] == 2


def test_most_bookings_are_right(tmp_path):
    out = run("extract_bookings.py", cwd=tmp_path)
    right, total = map(int, re.search(r"(\d+) of (\d+) requests are right", out).groups())
    assert right > total / 2 and total == 46
    assert re.search(r"[\d,]+ tokens computed, [\d,]+ taken from the cache, [\d,]+ forced by grammars", out)


def test_the_agent_uses_its_tools(tmp_path):
    out = run("agent.py", cwd=tmp_path)
    assert re.search(r"calculator\(.*\) -> \{\"result\": 41\}", out)
    assert "+49 30 5550 143" in out and "add_todo(" in out


def test_types_are_read_and_errors_stay_at_their_items(tmp_path):
    out = run("extract_types.py", cwd=tmp_path)
    assert "Booking(name='Anna Weber', city='Lisbon', date='March 3rd', guests=2)" in out
    assert re.search("group +FAILED: .*45 guests are a group", out) and re.search("digest +FAILED: .*do not fit the context", out)
    assert "4 of 6 read; 4 operations" in out


def test_types_are_read_from_files(tmp_path):
    (tmp_path / "mail.txt").write_text("Hi, Eva here, please book 3 guests in Madrid.")
    out = run("extract_types.py", "mail.txt", cwd=tmp_path)
    assert "city='Madrid'" in out and "1 of 1 read" in out


def test_a_program_is_tested_without_a_model(tmp_path):
    assert re.search(r"\d+ passed", run("unit_test_a_program.py", cwd=tmp_path))


def test_a_report_is_a_page_with_the_run_in_it(tmp_path):
    out = run("report_a_run.py", "page.html", cwd=tmp_path)
    assert "GetCarsAvailable" in out and "Portland" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "GetCarsAvailable" in page and page.count("<script") == 2


def test_the_readme_shows_the_quickstart_and_what_it_prints(tmp_path):
    readme = (EXAMPLES.parent / "README.md").read_text()
    program = (EXAMPLES / "quickstart.py").read_text().split('"""\n', 1)[1].strip()
    assert program in readme and run("quickstart.py", cwd=tmp_path).strip() in readme


def test_every_example_is_tested_here():
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
