"""What `sgl.evaluate` found, as a table, a page and a file."""

from __future__ import annotations

import csv
from functools import cached_property
from pathlib import Path
from typing import Any

from sgl.lang.report.report_page import framed

from .evaluation_page import evaluation_page
from .evaluation_text import evaluation_text
from .field_scores import MISSING, FieldScore
from .plain_values import json_form
from .scored_rows import EvaluatedRow, ScoredRows


class Evaluation(ScoredRows):
    """The result of `sgl.evaluate`. `print` shows it as a table, notebooks as a page.

    score: the mean score of the rows. right: how many rows are right in every field. rows: each with its fields.
    errors: the rows that failed. fields: a summary of each, by path. calibration: of confidences. confusions: of
    labels. usage: tokens. seconds: from the first row to the last. journal: nodes that a journal served or kept.
    """

    def csv(self, path: str | Path) -> Path:
        """Write a table with one line for each field of each row. Raises OSError."""
        target = Path(path)
        with target.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["row", "field", "gold", "given", "exact", "normalised", "score", "confidence", "error"])
            for row in self.rows:
                writer.writerows(_line(row, field) for field in row.fields)
        return target

    def page(self, path: str | Path) -> Path:
        """Write one HTML page with pictures, which loads nothing. Raises OSError."""
        target = Path(path)
        target.write_text(self.html, encoding="utf-8", errors="backslashreplace")
        return target

    @cached_property
    def html(self) -> str:
        """The page of `page`."""
        return evaluation_page(self)

    def __str__(self) -> str:
        return evaluation_text(self)

    def __repr__(self) -> str:
        return f"<evaluation of {self.name}: {self.right} of {len(self.rows)} rows right, score {self.score:.3f}>"

    def _repr_html_(self) -> str:
        return framed(self.html, "")


def _line(row: EvaluatedRow, field: FieldScore) -> list[Any]:
    error = "" if row.error is None else f"{type(row.error).__name__}: {row.error}"
    values = [
        "" if value is MISSING else value if isinstance(value, str) else repr(json_form(value))
        for value in (field.gold, field.given)
    ]
    figures = [int(field.exact), int(field.normalised), round(field.score, 6)]
    return [row.index, field.path, *values, *figures, "" if field.confidence is None else field.confidence, error]
