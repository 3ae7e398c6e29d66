"""Pass: the text that all runs start with is handed over and computed once, and stays pinned.

The prefix is read off the graph, so no code of the user runs for it. A stream that has it is held open as
long as the compiled program lives; each run continues from a fork of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...backend import Backend, Stream
from ...interpreter.stream_executor import StreamExecutor
from ...nodes.description_nodes import SglFields
from ...nodes.ir import SglConstantText, SglExpr, SglPastCalls, SglTools
from ...nodes.traced_nodes import SglArgument
from ...sampling.options import DEFAULTS
from ..graph_plan import GraphPlan, Lane
from ..trace_placeholders import filled
from ..trace_steps import AppendStep, GraphStep, JoinedTextStep

MIN_PREFIX = 64  # characters; less is not worth a stream


def hoist_prefix(plan: GraphPlan, shared: Mapping[str, Any] | None = None) -> GraphPlan:
    """The plan with its constant start as head. `shared` are arguments that are the same in all runs."""
    if plan.head or not plan.lanes:
        return plan
    first, *others = plan.lanes
    head: list[AppendStep] = []
    rest: list[GraphStep] = []
    for step in first:
        fixed = [] if rest else _leading(step, shared or {})
        head += fixed
        rest += _without(step, len(fixed))
    long = sum(_length(step.node, shared or {}) for step in head) >= MIN_PREFIX
    return replace(plan, lanes=(tuple(rest), *others), head=tuple(head)) if long else plan


def without_pinned_prefix(plan: GraphPlan) -> GraphPlan:
    """The plan without a head: what runs without a pinned stream do."""
    first: Lane = plan.lanes[0] if plan.lanes else ()
    return GraphPlan(((*plan.head, *first), *plan.lanes[1:]))


class PinnedPrefix:
    """A stream that holds the head of a plan, computed and kept in the backend's cache while this object lives."""

    def __init__(self, backend: Backend, head: tuple[AppendStep, ...], arguments: Mapping[str, Any]) -> None:
        self.backend = backend
        self._executor = StreamExecutor(backend, DEFAULTS)
        self._executor.conversation.quiet = True
        for step in head:
            self._executor.submit(filled(step.node, lambda part: arguments[part.name]), where=step.where)
        self.computed = self._executor.stream.prefill()

    def fork(self) -> Stream:
        """A stream that continues after the prefix."""
        return self._executor.stream.fork(1)[0]


class SilentStream(Stream):
    """Takes what a pinned stream has already."""

    def append(self, text: str) -> None:
        """Nothing: it is there."""

    def generate(self, request: Any, on_chunk: Any = None) -> Any:
        raise AssertionError("a prefix holds no gens")

    def fork(self, size: int) -> list[Stream]:
        raise AssertionError("a prefix holds no forks")

    def close(self) -> None:
        """Nothing to give back."""


def _leading(step: GraphStep, shared: Mapping[str, Any]) -> list[AppendStep]:
    """The parts at the start of a step that are the same in all runs."""
    parts = step.parts if isinstance(step, JoinedTextStep) else (step,)
    return list(_while_fixed(parts, shared))


def _while_fixed(parts: tuple[Any, ...], shared: Mapping[str, Any]) -> Iterator[AppendStep]:
    for part in parts:
        if not isinstance(part, AppendStep) or not (part.is_fixed or _is_shared(part.node, shared)):
            return
        yield part


def _is_shared(node: SglExpr, shared: Mapping[str, Any]) -> bool:
    return isinstance(node, SglArgument) and isinstance(shared.get(node.name), str)


def _without(step: GraphStep, count: int) -> list[GraphStep]:
    """What is left of a step without its first parts."""
    parts: tuple[GraphStep, ...] = step.parts if isinstance(step, JoinedTextStep) else (step,)
    left = parts[count:]
    if len(left) == len(parts):
        return [step]
    if isinstance(step, JoinedTextStep) and len(left) > 1:
        return [
            JoinedTextStep(step.state, left[0].where, step.scope, tuple(p for p in left if isinstance(p, AppendStep)))
        ]
    return list(left)


def _length(node: SglExpr, shared: Mapping[str, Any]) -> int:
    if isinstance(node, SglConstantText | SglFields | SglTools | SglPastCalls):
        return len(node.value) if isinstance(node, SglConstantText) else MIN_PREFIX
    return len(shared[node.name]) if isinstance(node, SglArgument) else 0
