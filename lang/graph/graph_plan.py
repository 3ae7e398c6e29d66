"""The order in which a graph is executed: lanes of steps. A lane waits where a step's inputs are not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .trace_steps import AppendStep, CloseStep, GraphStep, JoinedTextStep, WaitStep

Lane = tuple[GraphStep, ...]


@dataclass(frozen=True)
class GraphPlan:
    """`lanes` run at the same time; `head` are steps at the root's start that a pinned stream has done already."""

    lanes: tuple[Lane, ...]
    head: tuple[AppendStep, ...] = ()

    def steps(self) -> Iterator[GraphStep]:
        for lane in self.lanes:
            yield from lane

    def appended(self) -> Iterator[AppendStep]:
        """All single appends."""
        for step in (*self.head, *self.steps()):
            if isinstance(step, JoinedTextStep):
                yield from step.parts
            elif isinstance(step, AppendStep):
                yield step

    @property
    def nodes(self) -> int:
        """How many nodes each run executes."""
        return sum(not isinstance(step, WaitStep | CloseStep) for step in self.steps())
