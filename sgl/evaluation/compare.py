"""`sgl.compare`: two programs on the same rows, and whether the difference between them is more than chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sgl.lang.errors import BadValueError, shown

from .evaluate import evaluate
from .evaluation import Evaluation
from .text_table import text_table

LEVEL = 0.95  # of intervals
AT_ONCE = 1_000_000  # numbers that are drawn at once


@dataclass(frozen=True)
class Difference:
    """The mean difference b - a of the scores of the same rows, and the interval that has it in 95 % of resamples."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    @property
    def certain(self) -> bool:
        """Whether zero is outside of the interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Comparison:
    """The result of `sgl.compare`. `print` shows it as a table.

    a, b: the evaluations. difference: of the rows' scores; fields: of each field that both have in a row.
    won, lost: the rows, by index, in which b has a higher or a lower score than a.
    """

    a: Evaluation
    b: Evaluation
    difference: Difference
    fields: dict[str, Difference]
    won: list[int]
    lost: list[int]

    def __str__(self) -> str:
        head = ["", f"a: {self.a.name}", f"b: {self.b.name}", "b - a [95 %]"]
        lines = [["score", f"{self.a.score:.3f}", f"{self.b.score:.3f}", str(self.difference)]]
        for path, found in self.fields.items():
            scores = (f"{one.fields[path].score:.3f}" for one in (self.a, self.b))
            lines.append([path or "value", *scores, str(found)])
        known = self.a.usage.operations and self.b.usage.operations
        lines += [_figures(name, self.a, self.b, of) for name, of in _FIGURES.items() if known or "tokens" not in name]
        counts = len(self.won), len(self.lost), len(self.a.rows) - len(self.won) - len(self.lost)
        words = "b is better in {} rows, worse in {}, equal in {}".format(*counts)
        return f"{text_table(head, lines)}\n\n{words}"


def compare(
    a: Any,
    b: Any,
    rows: Sequence[Any] | None = None,
    gold: Sequence[Any] | None = None,
    *,
    resamples: int = 10_000,
    seed: int = 0,
    **options: Any,
) -> Comparison:
    """Evaluate two programs on the same rows, and return the differences with intervals of a paired bootstrap.

    a, b: what `sgl.evaluate` takes, or its results for the same rows, without `rows` and `gold`.
    rows, gold, options: of `sgl.evaluate`, for both. resamples: how often the rows are drawn again, with replacement.
    seed: of the drawing: the same seed gives the same intervals.

    Raises BadValueError for evaluations of different numbers of rows, of different gold values, or of different texts.
    """
    one, other = _evaluation(a, rows, gold, options), _evaluation(b, rows, gold, options)
    if [row.gold for row in one.rows] != [row.gold for row in other.rows]:
        raise BadValueError("the two evaluations have different gold values; evaluate both on the same rows")
    _check_rows(one, other)
    ahead = np.array([y.score - x.score for x, y in zip(one.rows, other.rows, strict=True)])
    shared = [path for path in one.fields if path in other.fields]
    fields = {path: _field_difference(path, one, other, resamples, seed) for path in shared}
    return Comparison(
        one,
        other,
        bootstrap(ahead, resamples, seed),
        {path: difference for path, difference in fields.items() if difference is not None},
        [int(i) for i in np.flatnonzero(ahead > 0)],
        [int(i) for i in np.flatnonzero(ahead < 0)],
    )


def _check_rows(a: Evaluation, b: Evaluation) -> None:
    """Rows in another order may have equal gold values. Two programs may name and take arguments differently, so that
    only rows that are texts in both evaluations are compared."""
    for one, other in zip(a.rows, b.rows, strict=True):
        if isinstance(one.row, str) and isinstance(other.row, str) and one.row != other.row:
            raise BadValueError(
                f"row {one.index} is {shown(one.row)} in one evaluation and {shown(other.row)} in the other; evaluate "
                "both on the same rows, in the same order"
            )


def bootstrap(differences: npt.NDArray[np.float64], resamples: int = 10_000, seed: int = 0) -> Difference:
    """The mean of the rows' differences, and the middle 95 % of the means of rows that are drawn with replacement."""
    generator, count = np.random.default_rng(seed), len(differences)
    means: list[npt.NDArray[np.float64]] = []
    while (left := resamples - sum(map(len, means))) > 0:
        drawn = generator.integers(0, count, (min(left, max(1, AT_ONCE // count)), count))
        means.append(differences[drawn].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(differences.mean()), float(low), float(high))


def _evaluation(one: Any, rows: Any, gold: Any, options: dict[str, Any]) -> Evaluation:
    if isinstance(one, Evaluation):
        return one
    if rows is None or gold is None:
        raise BadValueError(
            "compare needs the rows and the gold values of programs; without them, give two evaluations"
        )
    return evaluate(one, rows, gold, **options)


def _field_difference(path: str, a: Evaluation, b: Evaluation, resamples: int, seed: int) -> Difference | None:
    """Over the rows in which both have the field; of fields of items, the mean in the row."""
    means = [[_mean([f.score for f in row.fields if f.path == path]) for row in one.rows] for one in (a, b)]
    pairs = [(x, y) for x, y in zip(*means, strict=True) if x is not None and y is not None]
    return bootstrap(np.array([y - x for x, y in pairs]), resamples, seed) if pairs else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _figures(name: str, a: Evaluation, b: Evaluation, of: Callable[[Evaluation], float]) -> list[str]:
    return [name, f"{of(a):,.6g}", f"{of(b):,.6g}", f"{of(b) - of(a):+,.6g}"]


_FIGURES: dict[str, Callable[[Evaluation], float]] = {
    "rows right": lambda one: one.right,
    "rows failed": lambda one: len(one.errors),
    "generated tokens": lambda one: one.usage.generated_tokens,
    "seconds": lambda one: round(one.seconds, 2),
}
