"""A run as a picture: one HTML page that needs nothing else, or a still drawing.

    state.report("run.html")            # one run: its forks over time, its text, every token
    sgl.report(states, "batch.html")    # a batch: a table that opens each run
    state.picture("run.svg")            # the lanes of one run as SVG; notebooks show it
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import BadValueError
from ..program.state import StateBase
from .drawing import Picture
from .notebook import brief
from .page import Report
from .payload import page_data

__all__ = ["Picture", "Report", "brief", "picture", "report"]


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


def picture(state: StateBase, path: str | Path | None = None, *, lanes: int = 40, wait: bool = True) -> Picture:
    """The lanes of a run as a still drawing, saved at `path` (SVG) if that is given.

    `lanes`: how many branches are drawn; the drawing says how many more there are. `wait=False` shows what is there
    by now. Raises BadValueError for fewer lanes than one, OSError if the file cannot be written.
    """
    if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1:
        raise BadValueError(f"lanes is {lanes!r}; give a whole number from 1")
    made = Picture(page_data([state], wait=wait)["runs"][0], lanes)
    if path is not None:
        made.save(path)
    return made
