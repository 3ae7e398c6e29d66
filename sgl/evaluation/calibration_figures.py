"""Whether confidences mean what they say: of all answers given with confidence 0.8, 80 % should be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """The answers with a confidence from `low` to `high`: how many, their mean confidence, the share that is right."""

    low: float
    high: float
    count: int
    confidence: float
    right: float


@dataclass(frozen=True)
class CalibrationFigures:
    """Figures about confidences in answers that are right or wrong.

    count: of answers.
    ece: expected calibration error: the mean distance between confidence and share of right answers over bins of equal
        width, weighted by their answers; 0 is best.
    brier: the mean of (confidence - right)², where right is 1 or 0; 0 is best.
    auc: the area under the ROC curve, the probability that a right answer has a higher confidence than a wrong one; 1
        is best, 0.5 is chance, None if all answers are right or all are wrong.
    bins: of the reliability diagram, those with answers.
    """

    count: int
    ece: float
    brier: float
    auc: float | None
    bins: tuple[ReliabilityBin, ...]

    def __str__(self) -> str:
        area = "all alike" if self.auc is None else f"{self.auc:.3f}"
        return f"{self.count:,} confidences: ECE {self.ece:.3f}, Brier {self.brier:.3f}, AUC {area}"


def calibration(confidences: Sequence[float], right: Sequence[bool], bins: int = BINS) -> CalibrationFigures | None:
    """The figures of confidences (0 to 1) in answers, and which of the answers are right; None without answers."""
    if not confidences:
        return None
    given, truth = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    numbers = np.clip((given * bins).astype(int), 0, bins - 1)
    found = []
    for number in np.unique(numbers):
        of_bin = numbers == number
        means = float(given[of_bin].mean()), float(truth[of_bin].mean())
        found.append(ReliabilityBin(number / bins, (number + 1) / bins, int(of_bin.sum()), *means))
    ece = sum(one.count * abs(one.confidence - one.right) for one in found) / len(given)
    return CalibrationFigures(
        len(given), ece, float(((given - truth) ** 2).mean()), area_under_curve(given, truth), tuple(found)
    )


def area_under_curve(confidences: ArrayLike, right: ArrayLike) -> float | None:
    """P(a right answer has a higher confidence than a wrong one), ties as one half; None without one of the two."""
    given, truth = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=bool)
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return None
    _, places, counts = np.unique(given, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # from 1; equal confidences share the mean of their ranks
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))
