"""The scores of the fields of rows, and the figures made of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from sgl.lang.errors import BadValueError, nearest
from sgl.lang.interpreter.token_usage import Usage
from sgl.lang.journal import JournalCounts

from .calibration_figures import CalibrationFigures, calibration
from .field_scores import FieldScore
from .label_confusion import Confusion, confusion, has_labels


@dataclass(frozen=True)
class EvaluatedRow:
    """A row: what was given to the program, what it should give, what it gave, and how good that is.

    error: what took the value's place; all fields of such a row are wrong. seconds: of its run, of which others may
    have been at work at the same time.
    """

    index: int
    row: Any
    gold: Any
    value: Any
    error: BaseException | None
    fields: tuple[FieldScore, ...]
    usage: Usage | None
    seconds: float | None

    @property
    def score(self) -> float:
        """The mean score of the fields, a list as one field: from 0 to 1."""
        own = [field.score for field in self.fields if not field.nested]
        return fmean(own) if own else float(self.error is None)

    @property
    def right(self) -> bool:
        """Whether every field is right."""
        return self.error is None and all(field.right for field in self.fields)


@dataclass(frozen=True)
class FieldSummary:
    """One field over all rows: the shares that are exact and normalised, the mean score, and its calibration."""

    path: str
    count: int
    exact: float
    normalised: float
    score: float
    calibration: CalibrationFigures | None


@dataclass(frozen=True)
class ScoredRows:
    """The rows of an evaluation of one program.

    seconds: from the first row to the last. journal: how many nodes a journal served, and how many were computed.
    """

    name: str
    rows: tuple[EvaluatedRow, ...]
    seconds: float
    journal: JournalCounts | None = None

    @cached_property
    def score(self) -> float:
        """The mean score of the rows: from 0 to 1."""
        return fmean(row.score for row in self.rows)

    @property
    def right(self) -> int:
        """How many rows are right in every field."""
        return sum(row.right for row in self.rows)

    @property
    def errors(self) -> list[EvaluatedRow]:
        """The rows that failed. They count as wrong."""
        return [row for row in self.rows if row.error is not None]

    @cached_property
    def fields(self) -> dict[str, FieldSummary]:
        """By path, in the order of the values: `city`, `lines`, `lines[].price`; "" for a value without fields."""
        return {path: _summary(path, found) for path, found in self._by_path.items()}

    @cached_property
    def calibration(self) -> CalibrationFigures | None:
        """Of all confidences that the program gave, in whole values or in fields; None if it gave none."""
        return _calibration([field for found in self._by_path.values() for field in found])

    @cached_property
    def usage(self) -> Usage:
        """The tokens and times of all rows for which the program reports them."""
        return Usage.total(row.usage for row in self.rows if row.usage is not None)

    @cached_property
    def confusions(self) -> list[Confusion]:
        """Of the fields whose gold values are a few labels that return: at most 12, each twice on average."""
        return [self.confusion(path) for path, found in self._by_path.items() if has_labels(found)]

    def confusion(self, path: str = "") -> Confusion:
        """Which labels of a field were taken for which. Raises BadValueError for a path without scores."""
        if path not in self._by_path:
            raise BadValueError(f"confusion: no value has the field {path!r}; {nearest(path, self._by_path)}")
        return confusion(path, self._by_path[path])

    @cached_property
    def _by_path(self) -> dict[str, list[FieldScore]]:
        found: defaultdict[str, list[FieldScore]] = defaultdict(list)
        for row in self.rows:
            for field in row.fields:
                found[field.path].append(field)
        return dict(found)


def _summary(path: str, found: list[FieldScore]) -> FieldSummary:
    exact, normalised = fmean(field.exact for field in found), fmean(field.normalised for field in found)
    return FieldSummary(path, len(found), exact, normalised, fmean(field.score for field in found), _calibration(found))


def _calibration(found: list[FieldScore]) -> CalibrationFigures | None:
    pairs = [(field.confidence, field.right) for field in found if field.confidence is not None]
    return calibration([confidence for confidence, _ in pairs], [right for _, right in pairs])
