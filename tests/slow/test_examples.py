"""Every example runs by itself, as a user would run it, and says something true.

Most are forked from a process that has imported what they import: that takes longer than what many of them do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 240
sys.path.insert(0, str(Path(__file__).parents[1]))

from warm import run_warm  # noqa: E402


def run(name: str, *arguments: str, cwd: Path) -> str:
    """Of the path only what an interpreter of one's own would have: this one's is longer."""
    path = [str(EXAMPLES), *(found for found in sys.path if not found.startswith(str(EXAMPLES.parent / "tests")))]
    done = run_warm([str(EXAMPLES / name), *arguments], str(cwd), dict(os.environ), path, SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_cold(name: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quickstart_prints_json(tmp_path):
    lines = run_cold("quickstart.py", cwd=tmp_path).splitlines()
    booking = json.loads(lines[0])
    assert booking["city"] == "Lisbon" and booking["guests"] == 2
    assert lines[2:] == ["{}", "Booking(name=None, city=None, date=None, guests=None)"], (
        "what the text does not say is not invented"
    )


def test_invoices_are_read(tmp_path):
    lines = run("invoices.py", cwd=tmp_path).splitlines()
    assert lines[0].startswith("Invoice(number='A-1207', customer='Weber & Sons', total=80.5) {'number': ")
    assert lines[2].startswith("Invoice(number=None, customer=None, total=None) ")


def test_mails_get_their_labels(tmp_path):
    labels = [line.split()[0] for line in run("mails.py", cwd=tmp_path).splitlines()]
    assert labels == ["billing", "technical", "booking"]


def test_a_long_document_is_read_with_pages(tmp_path):
    lines = run("long_document.py", cwd=tmp_path).splitlines()
    assert lines[1].startswith("6 pieces, at most 6 calls") and sum("WRONG" in line for line in lines) <= 2
    assert re.search(r"^tenant +2 +\d+ Omar Haddad$", "\n".join(lines), re.MULTILINE)


def test_the_small_agent_answers(tmp_path):
    assert "+49 30 5550 143" in run("small_agent.py", cwd=tmp_path)


@pytest.mark.whole
def test_most_bookings_are_right(tmp_path):
    out = run("extract_bookings.py", cwd=tmp_path)
    right, total = map(int, re.search(r"(\d+) of (\d+) requests are right", out).groups())
    assert (
        right >= 37 - 3 and total == 46
    )  # 37 on the machine of its table; a close call may fall the other way elsewhere
    assert re.search(r"[\d,]+ tokens computed, [\d,]+ taken from the cache, [\d,]+ forced by grammars", out)


@pytest.mark.whole
def test_the_agent_uses_its_tools(tmp_path):
    out = run("agent.py", cwd=tmp_path)
    assert re.search(r"calculator\(.*\) -> \{\"result\": 41\}", out)
    assert "+49 30 5550 143" in out and "add_todo(" in out


@pytest.mark.whole
def test_types_are_read_and_errors_stay_at_their_items(tmp_path):
    out = run("extract_types.py", cwd=tmp_path)
    assert "Booking(name='Anna Weber', city='Lisbon', date='March 3rd', guests=2)" in out
    assert re.search("group +FAILED: .*45 guests are a group", out) and re.search(
        "digest +FAILED: .*do not fit the context", out
    )
    assert "5 of 7 read; 5 operations" in out
    assert re.search(r"car +Booking\(name=None, city=None, date=None, guests=None\)", out), (
        "what the text does not say is not invented"
    )


@pytest.mark.whole
def test_types_are_read_from_files(tmp_path):
    (tmp_path / "mail.txt").write_text("Hi, Eva here, please book 3 guests in Madrid.")
    out = run("extract_types.py", "mail.txt", cwd=tmp_path)
    assert "city='Madrid'" in out and "1 of 1 read" in out


@pytest.mark.whole
def test_a_program_is_tested_without_a_model(tmp_path):
    assert re.search(r"\d+ passed", run_cold("unit_test_a_program.py", cwd=tmp_path))


@pytest.mark.whole
def test_a_report_is_a_page_with_the_run_in_it(tmp_path):
    out = run("report_a_run.py", "page.html", cwd=tmp_path)
    assert "GetCarsAvailable" in out and "Portland" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "GetCarsAvailable" in page and page.count("<script") == 2


def test_the_readme_shows_the_quickstart_and_what_it_prints(tmp_path):
    readme = (EXAMPLES.parent / "README.md").read_text()
    program = (EXAMPLES / "quickstart.py").read_text().split('"""\n', 1)[1].strip()
    assert program in readme and run("quickstart.py", cwd=tmp_path).strip() in readme
    assert len(readme.splitlines()) < 150


# what an example is given, and what it must print: a pattern, and the least that each of its groups must be
CASES = {
    "classify_few_shot.py": (["--rows", "21", "--shots", "1", "--unsure", "2"], r"0 +yes +(\d+) of  21", [15]),
    "text_to_sql.py": ([], r"sqlite ran (\d+) of 16 queries; (\d+) of 16 find the right rooms", [16, 12]),
    "documents_qa.py": ([], r"(\d+) of 20 answers are right", [16]),
    "tree_of_thought.py": (["--beams", "8", "--documents", "15"], r" 8 +(\d+) of 15 +(\d+)", [8, 8]),
    "skeleton_of_thought.py": (["--dialogues", "4"], r"(\d+) of 4 outlines and (\d+) of \d points are right", [2, 2]),
    "judge.py": ([], r"verdict: mood +(\d+) of 16 right\nverdict: topic +(\d+) of 16 right", [14, 8]),
    "react.py": ([], r"(\d+) of 12 answers are right", [5]),
    "dsl.py": ([], r"(\d+) of 12 orders are carried out right; all 19 statements parse", [7]),
    "stream_in_terminal.py": (["--streams", "2", "--slowly", "0"], r"(\d+) pieces in 2 streams", [10]),
    "custom_choices.py": (["--rows", "21", "--costs", "1", "0.1"], r"0\.1 +(\d+) +(\d+)% ", [1, 70]),
    "embed_in_fastapi.py": (
        ["--self-test"],
        r"'city': 'Lisbon', 'date': 'Friday', 'guests': 4\}\nbooking \{'name': None, .*\}\nstream +'.*\nleft "
        r"+\{'running': 0, 'generated_tokens': (\d+)\}",
        [60],
    ),
    "adapter_listings.py": ([], r"base \d+ of 26, with the adapter (\d+)", [24]),
    "openai_backend.py": (
        [],
        r"(?:same: Booking\(.*\)\n){3}same: Booking\(name=None, city=None, date=None, guests=None\)",
        [],
    ),
    "langchain_over_server.py": (
        [],
        r"(?:right .*\n){4}stream .*\ntool +find_contact\(.*\nanswer .*\+49 30 5550 143",
        [],
    ),
}


OPTIONAL = {
    "stream_in_terminal.py": "rich",
    "langchain_over_server.py": "langchain_openai",
    "openai_backend.py": "openai",
}


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_an_example_does_what_it_says(name, tmp_path):
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    arguments, pattern, least = CASES[name]
    out = run(name, *arguments, cwd=tmp_path)
    found = re.search(pattern, out)
    assert found, out
    assert all(int(figure) >= bound for figure, bound in zip(found.groups(), least, strict=True)), out


@pytest.mark.whole
def test_a_tree_search_reads_better_than_greedy(tmp_path):
    out = run("tree_of_thought.py", "--beams", "1", "8", "--documents", "15", cwd=tmp_path)
    greedy, searched = (int(right) for right in re.findall(r"(\d+) of 15", out))
    assert greedy < searched


@pytest.mark.whole
def test_a_killed_batch_goes_on_from_its_journal(tmp_path):
    arguments = [
        sys.executable,
        str(EXAMPLES / "batch_with_resume.py"),
        "--rows",
        "60",
        "--folder",
        str(tmp_path),
        "--kill-after",
        "20",
    ]
    assert subprocess.run(arguments, capture_output=True, timeout=240).returncode == -signal.SIGKILL
    out = run("batch_with_resume.py", "--rows", "60", "--folder", str(tmp_path), cwd=tmp_path)
    served, computed = map(int, re.search(r"(\d+) nodes from the journal, (\d+) computed", out).groups())
    assert served >= 20 and served + computed == 60
    assert "row 25: " in out and "45 guests are a group" in out and "3 rows failed" in out
    again = run("batch_with_resume.py", "--rows", "60", "--folder", str(tmp_path), cwd=tmp_path)
    assert "60 nodes from the journal, 0 computed" in again


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_shows_its_prompts(path):
    source = path.read_text(encoding="utf-8")
    assert "nano.nano_prompts" not in source, "write the prompt with sgl.fields, a toolbox, or as text in the example"


def test_every_example_is_tested_here():
    tested = set(re.findall(r'run(?:_cold)?\("(\w+\.py)"', Path(__file__).read_text())) | set(CASES)
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_the_gallery_has_every_example():
    gallery = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\[`(\w+\.py)`\]", gallery)) == {path.name for path in EXAMPLES.glob("*.py")}
