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
from ..program.program_state import StateBase
from .notebook_summary import brief
from .report_page import RunReport
from .report_payload import page_data
from .run_svg import RunPicture

__all__ = ["RunPicture", "RunReport", "brief", "picture", "report"]


def report(states: Any, path: str | Path | None = None, *, title: str | None = None, wait: bool = True) -> RunReport:
    """Return the report of one or more runs and save it at `path` if given.

    `states`: a ProgramState, or the result of `run_batch`: ProgramStates, or exceptions for failed items. The report
    of a state covers its whole run with all forks. `wait=False` shows runs in progress instead of waiting for them.
    Raises BadValueError for other values, OSError if the file cannot be written.
    """
    runs = list(states) if isinstance(states, Iterable) and not isinstance(states, str | dict) else [states]
    made = RunReport(page_data(runs, title, wait))
    if path is not None:
        made.save(path)
    return made


def picture(state: StateBase, path: str | Path | None = None, *, lanes: int = 40, wait: bool = True) -> RunPicture:
    """Return a timeline of a run's branches as a drawing and save it at `path` (SVG) if given.

    `lanes`: how many branches to draw; the drawing says how many more there are. `wait=False` shows a run in progress.
    Raises BadValueError for fewer than one lane, OSError if the file cannot be written.
    """
    if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1:
        raise BadValueError(f"lanes is {lanes!r}; give a whole number from 1")
    made = RunPicture(page_data([state], wait=wait)["runs"][0], lanes)
    if path is not None:
        made.save(path)
    return made
