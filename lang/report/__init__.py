"""A run as a picture: one HTML page that needs nothing else.

    state.report("run.html")            # one run: its forks over time, its text, every token
    sgl.report(states, "batch.html")    # a batch: a table that opens each run
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .notebook import brief
from .page import Report
from .payload import page_data

__all__ = ["Report", "brief", "report"]


def report(states: Any, path: str | Path | None = None, *, title: str | None = None, wait: bool = True) -> Report:
    """The report of one run or of many, saved at `path` if that is given.

    `states`: a ProgramState, or what `run_batch` gave: ProgramStates, with exceptions in the place of items that
    failed. A state stands for its whole run, forks included. `wait=False` shows what is there by now instead of
    waiting for what is still being generated. Raises BadValueError for anything else, OSError if the file cannot
    be written.
    """
    runs = list(states) if isinstance(states, Iterable) and not isinstance(states, str | dict) else [states]
    made = Report(page_data(runs, title, wait))
    if path is not None:
        made.save(path)
    return made
