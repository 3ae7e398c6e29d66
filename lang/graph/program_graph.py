"""A traced program as a graph that can be drawn."""

from __future__ import annotations

from pathlib import Path

from .graph_structure import GraphStructure
from .render.graph_svg import draw_graph
from .render.graphviz_dot import graph_as_dot


class ProgramGraph(GraphStructure):
    """What `graph()` of a traced or compiled program gives; notebooks show its drawing."""

    def svg(self) -> str:
        """A drawing with a column for each state."""
        return draw_graph(self)

    def dot(self) -> str:
        """The graph in Graphviz' language."""
        return graph_as_dot(self)

    def save(self, path: str | Path) -> None:
        """Write the drawing (.svg) or the Graphviz text (.dot, .gv)."""
        path = Path(path)
        path.write_text(self.dot() if path.suffix in (".dot", ".gv") else self.svg(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()
