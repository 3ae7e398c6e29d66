"""What `alone` promises: another process, fixtures and parameters in it, and its outcome as this one's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest
from alone import INSIDE, alone, outcome, run_alone
from warm import run_warm

FILE = """
import pytest
from alone import alone

@alone
def test_fails(): assert [1] == [2]

@alone
def test_skips(): pytest.skip("no such machine")
"""


@alone
@pytest.mark.parametrize("number", [1, 2])
def test_the_body_runs_elsewhere_with_fixtures_and_parameters(tmp_path: Path, number: int) -> None:
    assert tmp_path.is_dir() and number in (1, 2)
    assert INSIDE in os.environ and not any(name.startswith("PYTEST_XDIST") for name in os.environ)


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.skipif(not util.find_spec("torch"), reason="needs torch"))],
    ids=["cold", "warm"],
)
def runs(tmp_path: Path, request: pytest.FixtureRequest):
    (tmp_path / "test_made_up.py").write_text(FILE)
    return lambda test: run_alone(f"test_made_up.py::{test}", str(tmp_path), warm=request.param)


@pytest.mark.whole
def test_a_failure_shows_what_it_said(runs) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)exit status 1.*assert \[1\] == \[2\]"):
        outcome(runs("test_fails"))


def test_a_skip_stays_one(runs) -> None:
    with pytest.raises(pytest.skip.Exception, match="1 skipped"):
        outcome(runs("test_skips"))


def test_a_test_that_is_not_there_fails(runs) -> None:
    with pytest.raises(pytest.fail.Exception, match="exit status 4"):
        outcome(runs("test_other"))


def test_a_process_that_dies_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="-9"):
        outcome(subprocess.CompletedProcess([], -9, "1 passed", ""))


@pytest.mark.whole
@pytest.mark.skipif(not util.find_spec("torch"), reason="needs torch")
def test_what_is_given_up_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """As when the time of a test is over while another process runs it."""
    long, short = tmp_path / "long.py", tmp_path / "short.py"
    long.write_text("import sys, time\ntime.sleep(60)\nsys.exit(7)")
    short.write_text("import sys\nprint('said')\nsys.exit('why')")

    def run(file: Path) -> subprocess.CompletedProcess[str]:
        return run_warm([str(file)], str(tmp_path), dict(os.environ), sys.path)

    run(short)  # from here on it is warm
    before = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(ZeroDivisionError):
            run(long)
    finally:
        signal.signal(signal.SIGALRM, before)
    done = run(short)
    assert (done.returncode, done.stdout, done.stderr) == (1, "said\n", "why\n")
