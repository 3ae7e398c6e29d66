"""The language: programs, their nodes, and the interpreter that runs them on a backend.

Lower rooms find higher ones through what is registered here, and in one other place: `lang/tools/__init__.py` adds the
rules of its nodes to the interpreter's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .program.report_and_journal_hooks import register

if TYPE_CHECKING:
    from .program.report_and_journal_hooks import JournalModule, ReportModule


def _reports() -> ReportModule:
    from . import report

    return report


def _journals() -> JournalModule:
    from . import journal

    return journal


register(_reports, _journals)  # for methods of states and options of runs; loaded when first asked for
