"""The passes over a plan, in their order, and what each of them saves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ...chat import ChatTemplate
from ..graph_plan import GraphPlan
from .branch_pass import start_branches
from .grammar_pass import constrained
from .literal_pass import join_literals
from .operation_counts import OperationCounts, count
from .prefix_pass import hoist_prefix

Pass = Callable[[GraphPlan], GraphPlan]


def grammars_ahead(plan: GraphPlan) -> GraphPlan:
    """Changes no step: what is compiled ahead is not compiled when it is asked for."""
    return plan


AS_WRITTEN = "as written"
BRANCHES, JOIN = "branches started together", "literals joined"
HOIST, AHEAD = "prefix hoisted", "grammars compiled ahead"
PASSES: dict[str, Pass] = {
    BRANCHES: start_branches,
    JOIN: join_literals,
    HOIST: hoist_prefix,
    AHEAD: grammars_ahead,
}


@dataclass(frozen=True)
class PassReportRow:
    """What a run does after a pass. `note` says what the counts do not show."""

    name: str
    counts: OperationCounts
    note: str = ""


class PassReport:
    """A row for the program as written and one for each pass: nodes, operations, round trips of one run."""

    def __init__(self, rows: list[PassReportRow]) -> None:
        self.rows = rows

    @property
    def before(self) -> OperationCounts:
        return self.rows[0].counts

    @property
    def after(self) -> OperationCounts:
        return self.rows[-1].counts

    def __getitem__(self, name: str) -> OperationCounts:
        """The counts after the pass of that name."""
        return next(row.counts for row in self.rows if row.name == name)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        head = f"{'':{width}}  {'nodes':>6}  {'operations':>10}  {'round trips':>11}"
        return "\n".join([head, *(_line(row, width) for row in self.rows)])

    __repr__ = __str__


def improve(
    plan: GraphPlan,
    arguments: dict[str, Any],
    template: ChatTemplate,
    names: Collection[str],
    model_name: str = "a backend",
) -> tuple[GraphPlan, PassReport]:
    """The plan after the passes of those names, and what each of them brought."""
    rows = [PassReportRow(AS_WRITTEN, count(plan, arguments, template, model_name))]
    for name, change in PASSES.items():
        if name in names:
            plan = change(plan)
            rows.append(PassReportRow(name, count(plan, arguments, template, model_name), _note(name, plan)))
    return plan, PassReport(rows)


def _note(name: str, plan: GraphPlan) -> str:
    if name == HOIST:
        return f"{len(plan.head)} nodes are done once for all runs" if plan.head else "no long constant prefix"
    if name == AHEAD:
        return f"{len(constrained(plan))} grammars"
    return ""


def _line(row: PassReportRow, width: int) -> str:
    counts = row.counts
    figures = f"{counts.nodes:>6}  {counts.operations:>10}  {counts.round_trips:>11}"
    return f"{row.name:{width}}  {figures}  {row.note}".rstrip()
