"""The order in which a graph is executed: lanes of steps. A lane waits where a step's inputs are not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .steps import Append, Close, Joined, Step, Wait

Lane = tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """`lanes` run at the same time; `head` are steps at the root's start that a pinned stream has done already."""

    lanes: tuple[Lane, ...]
    head: tuple[Append, ...] = ()

    def steps(self) -> Iterator[Step]:
        for lane in self.lanes:
            yield from lane

    def appended(self) -> Iterator[Append]:
        """All single appends."""
        for step in (*self.head, *self.steps()):
            if isinstance(step, Joined):
                yield from step.parts
            elif isinstance(step, Append):
                yield step

    @property
    def nodes(self) -> int:
        """How many nodes each run executes."""
        return sum(not isinstance(step, Wait | Close) for step in self.steps())
