"""The pictures of an evaluation's page: bars of scores, a reliability diagram, a matrix of labels."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from sgl.lang.report.run_svg import FILLS, FONT, INK, LINE

from .calibration_figures import CalibrationFigures
from .label_confusion import Confusion
from .text_table import cut, width

ROW, NAMES, BARS, GLYPH = 22, 220, 360, 6.65  # pixels
SIDE = 260  # of the reliability diagram
CELL = 44  # of the matrix


def score_bars(shares: list[tuple[str, float, float]], names: tuple[str, str]) -> str:
    """For each field a bar of one share (0 to 1), and above it a thinner one of another, which is not larger."""
    body = [_text(NAMES, 10, f"■ {names[0]}", FILLS["gen"]), _text(NAMES + 130, 10, f"■ {names[1]}", FILLS["guessed"])]
    for number, (name, share, stricter) in enumerate(shares):
        y = 22 + number * ROW
        body += [
            _text(NAMES - 8, y + 11, cut(name, 30), INK, "end"),
            _rect(NAMES, y + 2, share * BARS, 14, FILLS["gen"]),
        ]
        body += [_rect(NAMES, y + 11, stricter * BARS, 5, FILLS["guessed"]), _rect(NAMES, y + 2, BARS, 14, None)]
        body.append(_text(NAMES + BARS + 8, y + 13, f"{share:.3f}"))
    return _drawing(NAMES + BARS + 60, 30 + len(shares) * ROW, "scores of fields", body)


def reliability_diagram(found: CalibrationFigures) -> str:
    """The share of right answers over their confidence; a disc's area is its number of answers."""
    at = (lambda x: 40 + x * SIDE), (lambda y: 10 + (1 - y) * SIDE)
    body = [_rect(40, 10, SIDE, SIDE, None), _line(at[0](0), at[1](0), at[0](1), at[1](1), "4 3")]
    for tick in (0, 0.5, 1):
        body += [
            _text(at[0](tick), SIDE + 26, f"{tick:g}", INK, "middle"),
            _text(34, at[1](tick) + 4, f"{tick:g}", INK, "end"),
        ]
    body.append(_text(40 + SIDE / 2, SIDE + 42, "confidence → share that is right ↑", INK, "middle"))
    for one in found.bins:
        x, y, r = at[0](one.confidence), at[1](one.right), 3 + 14 * (one.count / found.count) ** 0.5
        title = f"{one.count} answers with confidence {one.confidence:.3f}: {one.right:.3f} right"
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{FILLS["gen"]}" fill-opacity="0.6">'
            f"<title>{title}</title></circle>"
        )
    return _drawing(SIDE + 70, SIDE + 52, f"reliability of confidences: {found}", body)


def confusion_matrix(found: Confusion) -> str:
    """A line for each gold label, a column for each given one; the darker, the larger the share of the line."""
    labels = found.labels
    top = 30 + max(int(GLYPH * width(cut(label, 16)) * 0.8) for label in labels)
    return _drawing(
        NAMES + CELL * len(labels) + 60,
        top + CELL * len(labels) + 10,
        f"confusion of labels, {found.path or 'value'}",
        [*_columns(labels, top), *_cells(found, top)],
    )


def _columns(labels: tuple[str, ...], top: int) -> Iterator[str]:
    yield _text(8, top - 8, "gold ↓ given →")
    for number, label in enumerate(labels):
        x = NAMES + CELL * (number + 0.5)
        yield f'<g transform="rotate(-50 {x:.1f} {top - 8})">{_text(x, top - 8, cut(label, 16))}</g>'


def _cells(found: Confusion, top: int) -> Iterator[str]:
    for line, gold in enumerate(found.labels):
        counts, y = found.row(gold), top + CELL * line
        yield _text(NAMES - 8, y + CELL / 2 + 4, cut(gold, 30), INK, "end")
        for column, count in enumerate(counts):
            share, colour = count / max(sum(counts), 1), FILLS["gen" if line == column else "error"]
            x = NAMES + CELL * column
            yield _rect(x, y, CELL - 2, CELL - 2, colour, 0.08 + 0.82 * share)
            yield _text(x + CELL / 2 - 1, y + CELL / 2 + 4, str(count), "#ffffff" if share > 0.5 else INK, "middle")


def _drawing(wide: float, high: float, about: str, body: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(about)}" width="{wide:.0f}" '
        f'height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}" font-family="{FONT}" font-size="11">'
        f"{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, colour: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(x: float, y: float, wide: float, high: float, fill: str | None, opacity: float = 1) -> str:
    look = f'fill="{fill}" fill-opacity="{opacity:.2f}"' if fill else f'fill="none" stroke="{LINE}" stroke-width="0.5"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" {look}/>'


def _line(x: float, y: float, u: float, v: float, dashes: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{LINE}" stroke-dasharray="{dashes}"/>'
