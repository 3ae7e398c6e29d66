"""Figures of the GPU benchmark, with the published anchor, the target, and the roofline of the same run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

ANCHOR = "vLLM 0.25.1, published anchor, not this run"


@dataclass(slots=True)
class Figure:
    """One measured number. `anchor` and `target` are for the 8B shape on an H200; `roof` is the bound in `unit`."""

    case: str
    what: str
    value: float
    unit: str
    anchor: float | None = None
    target: float | None = None
    roof: float | None = None
    note: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def falling(self) -> bool:
        """Whether less is better."""
        return self.unit in ("s", "ms", "% idle")

    @property
    def share(self) -> float | None:
        """Of the roofline, 1.0 when it is reached."""
        if not self.roof or not self.value or math.isnan(self.roof):
            return None
        return self.roof / self.value if self.falling else self.value / self.roof

    @property
    def reached(self) -> bool | None:
        if self.target is None or math.isnan(self.value):
            return None
        return self.value <= self.target if self.falling else self.value >= self.target

    def line(self) -> str:
        parts = [f"[{self.case}] {self.what}: {number(self.value)} {self.unit}"]
        if self.anchor is not None:
            parts.append(f"{ANCHOR}: {number(self.anchor)}")
        if self.target is not None:
            parts.append(f"target {number(self.target)}: {'reached' if self.reached else 'MISSED'}")
        if self.share is not None:
            parts.append(f"{100 * self.share:.0f}% of this run's roofline")
        return "; ".join([*parts, *([self.note] if self.note else [])])

    def as_dict(self) -> dict[str, Any]:
        shown = asdict(self) | {"share_of_roofline": self.share, "reached": self.reached}
        return {name: value for name, value in shown.items() if value not in (None, "", {})}


def number(value: float) -> str:
    """Three digits that matter, thousands apart."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def text_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns side by side, the first two to the left; None is empty."""
    cells = [[_cell(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cell(value: Any) -> str:
    return "" if value is None else number(value) if isinstance(value, float) else str(value)


def figures_table(figures: Iterable[Figure]) -> str:
    head = ("case", "what", "ours", "unit", "vLLM (published)", "target", "reached", "% of roofline")
    verdict = {None: None, True: "yes", False: "NO"}
    return text_table(
        head,
        [
            (
                f.case,
                f.what,
                float(f.value),
                f.unit,
                f.anchor,
                f.target,
                verdict[f.reached],
                None if f.share is None else f"{100 * f.share:.0f}",
            )
            for f in figures
        ],
    )
