"""Which labels are taken for which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .field_scores import MISSING, FieldScore
from .text_table import text_table

MOST_LABELS = 12  # of a field whose confusion is shown without being asked for


@dataclass(frozen=True)
class Confusion:
    """How often each label was given for each gold label, of one field.

    labels: the gold ones in the order of their frequency, then those that were only given. counts: by (gold, given);
    a row that failed has `(failed)` as given.
    """

    path: str
    labels: tuple[str, ...]
    counts: dict[tuple[str, str], int]

    def row(self, gold: str) -> list[int]:
        return [self.counts.get((gold, given), 0) for given in self.labels]

    def __str__(self) -> str:
        """A table; a line for each gold label, a column for each given one, with precision and recall at the ends."""
        known = [gold for gold in self.labels if any(self.row(gold))]
        lines = [[gold, *(str(n or "·") for n in self.row(gold)), _share(self.recall(gold))] for gold in known]
        ends = ["precision", *(_share(self.precision(given)) for given in self.labels), ""]
        return text_table([f"{self.path or 'label'}: gold ↓ given →", *self.labels, "recall"], [*lines, ends])

    def recall(self, label: str) -> float | None:
        """Of the rows with this gold label, the share for which it was given; None if there are none."""
        whole = sum(self.row(label))
        return self.counts.get((label, label), 0) / whole if whole else None

    def precision(self, label: str) -> float | None:
        """Of the rows for which the label was given, the share that has it as the gold one; None if there are none."""
        whole = sum(self.counts.get((gold, label), 0) for gold in self.labels)
        return self.counts.get((label, label), 0) / whole if whole else None


def confusion(path: str, fields: Iterable[FieldScore]) -> Confusion:
    """Of the scores of one field."""
    pairs = Counter((label(f.gold), label(f.gold if f.normalised else f.given)) for f in fields)
    golds: Counter[str] = Counter()
    for (gold, _), count in pairs.items():
        golds[gold] += count
    given = sorted({other for _, other in pairs} - golds.keys())
    return Confusion(path, (*(one for one, _ in golds.most_common()), *given), dict(pairs))


def has_labels(fields: list[FieldScore]) -> bool:
    """Whether the gold values are a few texts, whole numbers or bools that return. Fields of items are not meant."""
    if any(field.nested for field in fields):
        return False
    golds = [field.gold for field in fields if field.gold is not None and field.gold is not MISSING]
    scalars = all(isinstance(gold, str | int) for gold in golds)
    distinct = set(map(label, golds))
    return scalars and 1 < len(distinct) <= MOST_LABELS and 2 * len(distinct) <= len(golds)


def label(value: Any) -> str:
    return "(failed)" if value is MISSING else "(none)" if value is None else str(value)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
