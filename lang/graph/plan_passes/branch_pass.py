"""Pass: branches that do not depend on each other are started together.

As the body is written, states are served one after another, and each read of a value blocks all of them. The
values that a node really needs are known from the graph. So each state gets its own lane, and nothing else
waits.
"""

from __future__ import annotations

from ..graph_plan import GraphPlan
from ..trace_steps import GraphStep, WaitStep


def start_branches(plan: GraphPlan) -> GraphPlan:
    lanes: dict[int, list[GraphStep]] = {}
    for step in plan.steps():
        if not isinstance(step, WaitStep):
            lanes.setdefault(step.state, []).append(step)
    return GraphPlan(tuple(tuple(lane) for lane in lanes.values()), plan.head)
