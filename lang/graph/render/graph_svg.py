"""A graph as an SVG: a column for each state, time runs down, arrows for forks, joins and variables."""

from __future__ import annotations

from html import escape

from ...nodes.ir import SglExpr
from ..graph_structure import CALL, FORK, JOIN, GraphEdge, GraphStructure
from .node_labels import details_of, kind_of, label_of, printable

WIDTH, HEIGHT = 190, 26  # of a node, in pixels
COLUMN, ROW, MARGIN = 250, 42, 30
CHARACTERS = 25

_STYLE = """
.sgl-graph { font: 12px ui-monospace, Menlo, Consolas, monospace; }
.sgl-graph rect { stroke-width: 1.2; }
.sgl-graph .text rect { fill: #f3f4f6; stroke: #9ca3af; }
.sgl-graph .gen rect { fill: #dbeafe; stroke: #2563eb; }
.sgl-graph .select rect { fill: #ede9fe; stroke: #7c3aed; }
.sgl-graph .variable rect { fill: #dcfce7; stroke: #16a34a; }
.sgl-graph .argument rect { fill: #fef3c7; stroke: #d97706; }
.sgl-graph .fork rect { fill: #fce7f3; stroke: #db2777; }
.sgl-graph .other rect { fill: #ffffff; stroke: #6b7280; }
.sgl-graph .node text { fill: #111827; }
.sgl-graph .lane { fill: #6b7280; font-weight: bold; }
.sgl-graph path { fill: none; stroke: #6b7280; stroke-width: 1.2; }
.sgl-graph path.fork-edge, .sgl-graph path.join-edge { stroke: #db2777; }
.sgl-graph path.variable-edge { stroke: #16a34a; stroke-dasharray: 5 3; }
.sgl-graph path.call-edge { stroke: #d97706; stroke-dasharray: 2 3; }
.sgl-graph marker path { fill: #6b7280; stroke: none; }
@media (prefers-color-scheme: dark) {
.sgl-graph .text rect { fill: #1f2937; stroke: #6b7280; }
.sgl-graph .gen rect { fill: #1e3a8a; stroke: #60a5fa; }
.sgl-graph .select rect { fill: #4c1d95; stroke: #a78bfa; }
.sgl-graph .variable rect { fill: #14532d; stroke: #4ade80; }
.sgl-graph .argument rect { fill: #78350f; stroke: #fbbf24; }
.sgl-graph .fork rect { fill: #831843; stroke: #f472b6; }
.sgl-graph .other rect { fill: #111827; stroke: #9ca3af; }
.sgl-graph .node text { fill: #f9fafb; }
.sgl-graph .lane { fill: #d1d5db; }
.sgl-graph path { stroke: #9ca3af; }
.sgl-graph path.fork-edge, .sgl-graph path.join-edge { stroke: #f472b6; }
.sgl-graph path.variable-edge { stroke: #4ade80; }
.sgl-graph path.call-edge { stroke: #fbbf24; }
.sgl-graph marker path { fill: #9ca3af; }
}
"""
_ARROW = (
    '<defs><marker id="sgl-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
)


def draw_graph(graph: GraphStructure) -> str:
    """The graph as an SVG document. It follows the light or dark scheme of the page."""
    places = GraphLayout(graph)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sgl-graph" role="img" width="{places.width}" '
        f'height="{places.height}" viewBox="0 0 {places.width} {places.height}">',
        f"<style>{_STYLE}</style>{_ARROW}",
        *(places.lane(index) for index in range(len(graph.states))),
        *(places.edge(edge) for edge in graph.edges),
        *(places.box(node) for node in graph.nodes),
        "</svg>\n",
    ]
    return "\n".join(part for part in parts if part)


class GraphLayout:
    """The place of each node: in the column of its state, below all that it depends on."""

    def __init__(self, graph: GraphStructure) -> None:
        self.graph = graph
        self.rows = _rows(graph)
        self.columns = _columns(graph, self.rows)
        self.width = 2 * MARGIN + max(self.columns.values(), default=0) * COLUMN + WIDTH
        self.height = 2 * MARGIN + (max(self.rows.values(), default=0) + 1) * ROW

    def corner(self, node: SglExpr) -> tuple[int, int]:
        return MARGIN + self.columns[self.graph.owner[id(node)].index] * COLUMN, MARGIN + self.rows[id(node)] * ROW

    def box(self, node: SglExpr) -> str:
        x, y = self.corner(node)
        label = printable(label_of(node))
        short = label if len(label) <= CHARACTERS else f"{label[: CHARACTERS - 1]}…"
        return (
            f'<g class="node {kind_of(node)}"><title>{escape(printable(details_of(node)))}</title>'
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<text x="{x + 8}" y="{y + 17}">{escape(short)}</text></g>'
        )

    def lane(self, index: int) -> str:
        """The name of a state, and the line through its nodes."""
        nodes = self.graph.states[index].nodes
        if not nodes:
            return ""
        (x, top), (_, bottom) = self.corner(nodes[0]), self.corner(nodes[-1])
        name = escape(printable(self.graph.states[index].label))
        middle = x + WIDTH // 2
        return (
            f'<text class="lane" x="{x}" y="{top - 8}">{name}</text>'
            f'<path class="lane-line" d="M{middle} {top + HEIGHT}V{bottom}"/>'
        )

    def edge(self, edge: GraphEdge) -> str:
        """An arrow from the source to the node that needs it."""
        (x, y), (u, v) = self.corner(edge.source), self.corner(edge.target)
        title = f"<title>{escape(printable(edge.name or edge.kind))}</title>"
        return (
            f'<path class="{edge.kind}-edge" marker-end="url(#sgl-arrow)" d="{_curve(edge, x, y, u, v)}">{title}</path>'
        )


def _rows(graph: GraphStructure) -> dict[int, int]:
    """A row for each node, by its id: below all that it depends on and below those before it in its state."""
    rows: dict[int, int] = {}
    ends: dict[int, int] = {}
    called = {id(edge.target): edge.source for edge in graph.edges if edge.kind == CALL}
    for node in sorted(graph.nodes, key=lambda node: node.node_id or 0):
        before = [*node.predecessors, *([called[id(node)]] if id(node) in called else [])]
        state = graph.owner[id(node)].index
        rows[id(node)] = max([ends.get(state, 0), *(rows[id(other)] for other in before)]) + 1
        ends[state] = rows[id(node)]
    return rows


def _columns(graph: GraphStructure, rows: dict[int, int]) -> dict[int, int]:
    """A column for each state: the first, right of its parent's, that is free from where the state begins."""
    columns: dict[int, int] = {}
    free_from: dict[int, int] = {}
    drawn_states = [state for state in graph.states if state.nodes]
    for state in sorted(drawn_states, key=lambda state: rows[id(state.nodes[0])]):
        column = 0 if state.parent is None else columns.get(state.parent.index, 0) + 1
        while free_from.get(column, -1) >= rows[id(state.nodes[0])] - 1:
            column += 1
        columns[state.index] = column
        free_from[column] = rows[id(state.nodes[-1])]
    return columns


def _curve(edge: GraphEdge, x: int, y: int, u: int, v: int) -> str:
    """From the side of the source to the side of the target; inside a column around the nodes between them."""
    start, end = y + HEIGHT // 2, v + HEIGHT // 2
    if x == u:
        right = x + WIDTH
        return f"M{right} {start}C{right + 34} {start} {right + 34} {end} {right} {end}"
    if edge.kind in (FORK, CALL):
        top = u + WIDTH // 2
        return f"M{x + WIDTH} {start}C{top} {start} {top} {start} {top} {v}"
    if edge.kind == JOIN:
        bottom = x + WIDTH // 2
        return f"M{bottom} {y + HEIGHT}C{bottom} {end} {bottom} {end} {u + WIDTH if u < x else u} {end}"
    left, right = (x + WIDTH, u) if u > x else (x, u + WIDTH)
    bend = 40 if u > x else -40
    return f"M{left} {start}C{left + bend} {start} {right - bend} {end} {right} {end}"
