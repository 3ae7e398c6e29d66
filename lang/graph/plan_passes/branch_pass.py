"""Pass: branches that do not depend on each other are started together.

As the body is written, one state after another is served and each read of a value holds up all of them. The
values that a node really needs are known from the graph: so each state gets a lane of its own, and nothing
else waits.
"""

from __future__ import annotations

from .plan import Plan
from .steps import Step, Wait


def start_branches(plan: Plan) -> Plan:
    lanes: dict[int, list[Step]] = {}
    for step in plan.steps():
        if not isinstance(step, Wait):
            lanes.setdefault(step.state, []).append(step)
    return Plan(tuple(tuple(lane) for lane in lanes.values()), plan.head)
