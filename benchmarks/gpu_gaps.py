"""When a device was busy, from the intervals of its kernels; pure arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BETWEEN_STEPS = 5_000  # ns; kernels of one graph follow each other faster than this


class Kernel(NamedTuple):
    """Times in ns on one clock."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Busy:
    """window: ns from the first kernel's start to the last one's end; busy: ns
    with at least one kernel; gaps: ns each.
    """

    window: int
    busy: int
    gaps: tuple[int, ...]

    @property
    def idle_share(self) -> float:
        return 1 - self.busy / self.window if self.window else 0.0

    def share_of_gaps(self, longer_than: int = BETWEEN_STEPS) -> float:
        """Of the window, spent in gaps of more than `longer_than` ns."""
        return sum(gap for gap in self.gaps if gap > longer_than) / self.window if self.window else 0.0


def busy(kernels: Sequence[Kernel]) -> Busy:
    """The union of the kernels' intervals, whatever their streams, against the window they span."""
    if not kernels:
        return Busy(0, 0, ())
    spans = np.array([(k.start, k.end) for k in kernels], dtype=np.int64)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])  # [kernels], the latest end so far
    gaps = spans[1:, 0] - ends[:-1]
    gaps = gaps[gaps > 0]
    window = int(ends[-1] - spans[0, 0])
    return Busy(window, window - int(gaps.sum()), tuple(gaps.tolist()))


def within(kernels: Sequence[Kernel], first: int, last: int) -> list[Kernel]:
    """Those that are wholly in [first, last]."""
    return [k for k in kernels if k.start >= first and k.end <= last]


def by_name(kernels: Sequence[Kernel], top: int) -> list[tuple[str, int, int]]:
    """(name, launches, ns) of the kernels that took the most time in sum, the rest as one row."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for kernel in kernels:
        sums[kernel.name][0] += 1
        sums[kernel.name][1] += kernel.end - kernel.start
    rows = sorted(((name, n, ns) for name, (n, ns) in sums.items()), key=lambda row: -row[2])
    rest = rows[top:]
    return rows[:top] + ([("(others)", sum(r[1] for r in rest), sum(r[2] for r in rest))] if rest else [])
