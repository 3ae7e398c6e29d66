"""A traced program as a graph: its states with their nodes, and which node depends on which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..nodes.ir import SglExpr, graph_line
from ..nodes.traced_nodes import SglFork, SglJoin, SglVariable
from .trace_recording import TracedState

FORK, JOIN, VARIABLE, CALL = "fork", "join", "variable", "call"


@dataclass(frozen=True)
class GraphEdge:
    """`kind` is "fork", "join", "variable" or "call". From a node to one that needs it, in another state."""

    kind: str
    source: SglExpr
    target: SglExpr
    name: str = ""


class GraphStructure:
    """`states`: the program, the branches of its forks and the programs that it calls, in order of their start.

    Each has `nodes` in their order, `kind` ("program", "fork", "call"), `label` and `parent`.
    """

    def __init__(self, states: list[TracedState]) -> None:
        self.states = states
        self.owner = {id(node): state for state in states for node in state.nodes}

    @property
    def nodes(self) -> list[SglExpr]:
        return [node for state in self.states for node in state.nodes]

    @property
    def edges(self) -> list[GraphEdge]:
        """Dependencies between states, and variables that are read in their own state."""
        return [edge for state in self.states for edge in self._edges_into(state)]

    def _edges_into(self, state: TracedState) -> Iterator[GraphEdge]:
        for node in state.nodes:
            if isinstance(node, SglVariable) and node.source is not None:
                yield GraphEdge(VARIABLE, node.source, node, node.name)
            if isinstance(node.prev_node, SglFork):
                yield GraphEdge(FORK, node.prev_node, node)
            if isinstance(node, SglJoin):
                yield from (GraphEdge(JOIN, last, node) for last in node.states)
        yield from self._call(state)

    def _call(self, state: TracedState) -> Iterator[GraphEdge]:
        """A called program hangs on the node that its caller had come to."""
        if state.kind == "call" and state.nodes and state.called_at is not None:
            yield GraphEdge(CALL, state.called_at, state.nodes[0], state.label)

    def print(self) -> str:
        """One line for each node, state by state."""
        parts = []
        for state in self.states:
            lines = "\n".join(graph_line(node) for node in state.nodes)
            parts.append(f"# {state.kind} {state.label}\n{lines}\n")
        return "".join(parts)
