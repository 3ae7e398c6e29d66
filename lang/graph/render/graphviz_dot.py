"""A graph in Graphviz' language."""

from __future__ import annotations

from ...nodes.ir import SglExpr
from ...nodes.traced_nodes import SglFork
from ..graph_structure import CALL, FORK, JOIN, VARIABLE, GraphStructure
from ..trace_recording import TracedState
from .node_labels import FORK as FORK_NODE
from .node_labels import GEN, SELECT, kind_of, label_of, printable

_STYLES = {FORK: "", JOIN: "", VARIABLE: "style=dashed", CALL: "style=dotted"}
_SHAPES = {GEN: "box, style=bold", SELECT: "box, style=bold", FORK_NODE: "ellipse"}


def graph_as_dot(graph: GraphStructure) -> str:
    """The graph with a cluster for each state."""
    lines = ["digraph program {", "  node [shape=box, fontname=monospace];"]
    for state in graph.states:
        lines += _cluster(state)
    for edge in graph.edges:
        label = f"label={_quoted(edge.name)}" if edge.name else ""
        about = ", ".join(part for part in (_STYLES[edge.kind], label) if part)
        lines.append(f"  {_id(edge.source)} -> {_id(edge.target)} [{about}];")
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(state: TracedState) -> list[str]:
    lines = [f"  subgraph cluster_{state.index} {{", f"    label={_quoted(state.label)};"]
    for node in state.nodes:
        lines.append(f"    {_id(node)} [label={_quoted(label_of(node))}, shape={_SHAPES.get(kind_of(node), 'box')}];")
    for node in state.nodes:
        if node.prev_node is not None and not isinstance(node.prev_node, SglFork):
            lines.append(f"    {_id(node.prev_node)} -> {_id(node)};")
    return [*lines, "  }"]


def _id(node: SglExpr) -> str:
    return f"n{node.node_id}"


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
