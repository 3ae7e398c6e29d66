"""A plugin of pytest: each outcome, and why a test failed, goes to the file OUTCOMES at
once, so that a run that is cut off loses nothing.
"""

from __future__ import annotations

import os
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    if "OUTCOMES" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["OUTCOMES"], "a", encoding="utf-8") as file:
            file.write(f"{report.outcome} {report.when} {report.duration:.1f} s {report.nodeid}\n")
            if report.outcome == "failed":
                file.write(report.longreprtext[-6000:] + "\n\n")
