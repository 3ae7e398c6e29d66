"""An evaluation in a terminal: its figures, a table of fields, confusions, and the rows that failed."""

from __future__ import annotations

from collections.abc import Iterator

from .scored_rows import FieldSummary, ScoredRows
from .text_table import cut, text_table

MOST_ERRORS = 20  # that are shown; the CSV has all
LINE = 300  # columns of an error


def evaluation_text(found: ScoredRows) -> str:
    return "\n\n".join(_parts(found))


def headline(found: ScoredRows) -> str:
    failed = f", {len(found.errors)} failed" if found.errors else ""
    share = found.right / len(found.rows)
    return f"{found.name}: {found.right} of {len(found.rows)} rows right ({share:.1%}), score {found.score:.3f}{failed}"


def cost(found: ScoredRows) -> str:
    """Tokens and seconds, as far as they are known."""
    used = f"{found.usage}; " if found.usage.operations else ""
    kept = f"; {found.journal}" if found.journal else ""
    return f"{used}{found.seconds:.2f} s for all rows{kept}"


def field_table(found: ScoredRows) -> tuple[list[str], list[list[str]]]:
    """Head and lines. Columns about confidences are there if the program gives some."""
    sure = found.calibration is not None
    head = ["field", "values", "exact", "normalised", "score", *(["confidence", "ECE", "AUC"] if sure else [])]
    return head, [_field_line(one, sure) for one in found.fields.values()]


def error_lines(found: ScoredRows) -> Iterator[str]:
    for row in found.errors[:MOST_ERRORS]:
        yield f"row {row.index}: {type(row.error).__name__}: {row.error}"
    if len(found.errors) > MOST_ERRORS:
        yield f"and {len(found.errors) - MOST_ERRORS} more; .csv(path) has all"


def _parts(found: ScoredRows) -> Iterator[str]:
    yield headline(found)
    yield text_table(*field_table(found))
    yield from map(str, found.confusions)
    if found.calibration:
        yield str(found.calibration)
    if found.errors:
        yield "\n".join(cut(line, LINE) for line in error_lines(found))
    yield cost(found)


def _field_line(one: FieldSummary, sure: bool) -> list[str]:
    shares = [one.path or "value", f"{one.count}", *(f"{x:.3f}" for x in (one.exact, one.normalised, one.score))]
    if not sure:
        return shares
    if one.calibration is None:
        return [*shares, "", "", ""]
    mean = sum(x.count * x.confidence for x in one.calibration.bins) / one.calibration.count
    area = "" if one.calibration.auc is None else f"{one.calibration.auc:.3f}"
    return [*shares, f"{mean:.3f}", f"{one.calibration.ece:.3f}", area]
