"""Tests that count the memory, threads, processes or open files of their own process, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from warm import run_warm

INSIDE = "SGL_TEST_ALONE"  # set where the body itself is to run


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """Runs the test, with its fixtures and parameters, in a fresh pytest; the outermost decorator."""
    if INSIDE in os.environ:
        return test

    def run(request: pytest.FixtureRequest) -> None:
        outcome(run_alone(request.node.nodeid, str(request.config.rootpath)))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return run


def run_alone(node: str, root: str, warm: bool | None = None) -> subprocess.CompletedProcess[str]:
    """It imports what this process would: the same path, and not the working directory before it (-P).

    Of the plugins of installed packages, whose imports take longer than most tests, only the one that ends what hangs.
    warm: whether torch and what builds on it is there already, as for the tests of engines it is.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = [path or os.getcwd() for path in sys.path]
    env |= {INSIDE: "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(path)}
    command = ["-m", "pytest", "-q", "-rs", "--no-header", "-p", "no:cacheprovider", "-p", "pytest_timeout", node]
    if node.startswith("tests/cpu/") if warm is None else warm:
        return run_warm(command, root, env, path)
    return subprocess.run([sys.executable, "-P", *command], cwd=root, env=env, capture_output=True, text=True)


def outcome(run: subprocess.CompletedProcess[str]) -> None:
    """Passes, skips or fails as the run did; a failure shows all that it said."""
    last = run.stdout.rstrip().rpartition("\n")[2]
    if run.returncode:
        pytest.fail(
            f"in a process of its own (exit status {run.returncode}):\n{run.stdout}\n{run.stderr}", pytrace=False
        )
    if "passed" not in last:
        pytest.skip(f"in a process of its own: {last}")
