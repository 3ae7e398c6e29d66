"""An evaluation as one HTML page: figures, pictures, and every row with what is wrong in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from sgl.lang.report.report_page import static_page
from sgl.lang.report.value_text import seen

from .evaluation_svg import confusion_matrix, reliability_diagram, score_bars
from .evaluation_text import cost, error_lines, field_table, headline
from .field_scores import MISSING
from .plain_values import json_form
from .scored_rows import EvaluatedRow, ScoredRows

MOST_ROWS = 1000  # on a page, wrong ones first; the CSV has all
MOST_TEXT = 2000  # characters of a row's arguments


def evaluation_page(found: ScoredRows) -> str:
    return static_page(f"{found.name}: evaluation", "\n".join(_body(found)))


def _body(found: ScoredRows) -> Iterator[str]:
    yield f"<header><h1>{_shown(headline(found))}</h1><p class='muted'>{_shown(cost(found))}</p></header><main>"
    bars = score_bars(
        [(one.path or "value", one.score, one.exact) for one in found.fields.values()], ("score", "exact")
    )
    yield _panel("Fields", bars + _table(*field_table(found)))
    if found.calibration:
        yield _panel(f"Confidence: {found.calibration}", reliability_diagram(found.calibration))
    for confusion in found.confusions:
        yield _panel(f"Labels of {confusion.path or 'the value'}", confusion_matrix(confusion))
    if found.errors:
        yield _panel("Rows that failed", "".join(f"<p class='error'>{_shown(line)}</p>" for line in error_lines(found)))
    yield _panel("Rows", _rows(found))
    yield "</main>"


def _rows(found: ScoredRows) -> str:
    """Rows that are not right are open, with their fields; the others are closed."""
    rows = sorted(found.rows, key=lambda row: (row.right, row.index))
    more = f"<p class='muted'>and {len(rows) - MOST_ROWS} more; .csv(path) has all</p>" if len(rows) > MOST_ROWS else ""
    return "".join(map(_row, rows[:MOST_ROWS])) + more


def _row(row: EvaluatedRow) -> str:
    failed = f"<p class='error'>{_shown(f'{type(row.error).__name__}: {row.error}')}</p>" if row.error else ""
    given = f"<pre>{_shown(_value(row.row)[:MOST_TEXT])}</pre>"
    fields = _table(
        ["field", "gold", "given", "score", "confidence"],
        [
            [f.path or "value", _value(f.gold), _value(f.given), f"{f.score:.3f}", _sure(f.confidence)]
            for f in row.fields
        ],
        wrong=[not f.right for f in row.fields],
    )
    summary = f"<summary>row {row.index}: score {row.score:.3f}</summary>"
    return f"<details{'' if row.right else ' open'}>{summary}{given}{failed}{fields}</details>"


def _table(head: Iterable[str], lines: list[list[str]], wrong: list[bool] | None = None) -> str:
    marks = wrong or [False] * len(lines)
    rows = "".join(
        f"<tr{' class=error' if mark else ''}>{''.join(f'<td>{_shown(cell)}</td>' for cell in line)}</tr>"
        for line, mark in zip(lines, marks, strict=True)
    )
    return f"<table><tr>{''.join(f'<th>{_shown(cell)}</th>' for cell in head)}</tr>{rows}</table>"


def _panel(title: str, content: str) -> str:
    return f"<section class='panel'><h2>{_shown(title)}</h2>{content}</section>"


def _value(value: Any) -> str:
    if value is MISSING:
        return "(no value)"
    return value if isinstance(value, str) else json.dumps(json_form(value), ensure_ascii=False)


def _sure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _shown(text: str) -> str:
    return escape(seen(text))
