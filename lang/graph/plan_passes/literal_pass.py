"""Pass: pieces of text that follow one another go to the backend as one.

A piece with a value that is still to come may begin such a group, but not follow in it: what precedes it need
not wait.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph_plan import GraphPlan, Lane
from ..trace_placeholders import TracedVariable
from ..trace_steps import AppendStep, GraphStep, JoinedTextStep


def join_literals(plan: GraphPlan) -> GraphPlan:
    return replace(plan, lanes=tuple(_joined(lane) for lane in plan.lanes))


def _joined(lane: Lane) -> Lane:
    steps: list[GraphStep] = []
    group: list[AppendStep] = []
    for step in lane:
        parts = _texts(step)
        if group and not (parts and not step.values and step.state == group[0].state):
            steps.append(_one(group))
            group = []
        group += parts
        if not parts:
            steps.append(step)
    return (*steps, _one(group)) if group else tuple(steps)


def _texts(step: GraphStep) -> list[AppendStep]:
    """The pieces of text of a step; none if it is not text."""
    if isinstance(step, JoinedTextStep):
        return list(step.parts)
    return [step] if isinstance(step, AppendStep) and (step.is_text or isinstance(step.node, TracedVariable)) else []


def _one(group: list[AppendStep]) -> GraphStep:
    first = group[0]
    return first if len(group) == 1 else JoinedTextStep(first.state, first.where, first.scope, tuple(group))
