"""What the runs of one page share: its sources, its vocabulary, and its clock."""

from __future__ import annotations

from .report_sources import ReportSources
from .report_tokens import PageVocabulary


class ReportPages:
    """What the runs of one page have in common. `time` counts from the beginning of the run at hand."""

    def __init__(self, since: float) -> None:
        self.sources = ReportSources(since)
        self.vocabulary = PageVocabulary()
        self.failures: set[int] = set()
        self.zero = 0.0

    def time(self, moment: float | None) -> float | None:
        return None if moment is None else round(moment - self.zero, 6)
