"""What the checks report, and the table of all rules."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "info"]


class Rule(NamedTuple):
    """One kind of mistake. docs/check.md explains each with an example."""

    id: str
    severity: Severity
    title: str


@dataclass(frozen=True)
class Problem:
    """A mistake at a place of a file. Lines and columns count from 1; `cell` (from 1) if it is a notebook."""

    path: str
    line: int
    column: int
    rule: str
    severity: Severity
    message: str
    source: str = ""
    cell: int | None = None

    @property
    def place(self) -> str:
        """`file:line:column`, or `file:cell N:line:column`."""
        cell = f":cell {self.cell}" if self.cell is not None else ""
        return f"{self.path}{cell}:{self.line}:{self.column}"

    def __str__(self) -> str:
        return f"{self.place}: {self.rule} {self.message}"


def hint(name: str, known: Iterable[str]) -> str:
    """What was meant, or what there is if that is little."""
    names = sorted(known)
    if close := difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 8 else ""


_TABLE: tuple[tuple[str, Severity, str], ...] = (
    ("SGL001", "error", "the source cannot be parsed"),
    ("SGL101", "error", "a variable is read but never made"),
    ("SGL102", "warning", "a variable is read that only some paths make"),
    ("SGL103", "warning", "a variable is overwritten before it is read"),
    ("SGL104", "warning", "a parameter and a gen have the same name"),
    ("SGL105", "error", "generated text is used as a number"),
    ("SGL106", "error", "states have no such attribute"),
    ("SGL107", "warning", "a list with one fork's value is used as text"),
    ("SGL201", "error", "a role begins inside another role"),
    ("SGL202", "error", "a role ends but never began"),
    ("SGL203", "error", "a role ends while another one is open"),
    ("SGL204", "warning", "a role is still open at the end of the program"),
    ("SGL205", "info", "a turn is appended twice"),
    ("SGL206", "warning", "in a conversation, a gen is outside of all turns"),
    ("SGL207", "error", "a turn gets None"),
    ("SGL301", "error", "an expression is turned into text"),
    ("SGL302", "error", "the appended value is neither text nor an expression"),
    ("SGL303", "warning", "an expression is created but not appended"),
    ("SGL401", "error", "an unknown option"),
    ("SGL402", "error", "an invalid value of an option"),
    ("SGL403", "error", "choices is neither a list of strings, a dict of definitions, an Enum nor a Literal"),
    ("SGL404", "warning", "choices has a text twice"),
    ("SGL405", "error", "two constraints on one gen"),
    ("SGL406", "error", "sgl has no such name"),
    ("SGL501", "error", "a regular expression that cannot be used"),
    ("SGL502", "error", "a JSON schema that cannot be used"),
    ("SGL503", "error", "an EBNF grammar that cannot be used"),
    ("SGL504", "warning", "a stop string that the constraint never allows"),
    ("SGL601", "error", "the first parameter of a program is not `s`"),
    ("SGL602", "warning", "a parameter has the name of a run option"),
    ("SGL603", "error", "arguments do not fit the program"),
    ("SGL604", "error", "a function without @sgl.function is run"),
    ("SGL701", "warning", "only generated text can end a loop"),
    ("SGL801", "error", "an async read lacks `await`"),
    ("SGL802", "warning", "a read cannot wait for its value"),
)

RULES: dict[str, Rule] = {row[0]: Rule(*row) for row in _TABLE}
