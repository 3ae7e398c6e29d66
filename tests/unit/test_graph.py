"""Graphs: states, nodes, edges, drawings that any XML parser reads, Graphviz text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from lang_rules import RuleBackend
from random_programs import operations, program_of

import sgl
from sgl.lang.graph.render.graph_svg import GraphLayout

pytestmark = pytest.mark.filterwarnings("ignore::sgl.lang.chat.DefaultTemplateWarning")
SVG = "{http://www.w3.org/2000/svg}"


@sgl.function
def inner(s, x):
    s += "inner " + x + sgl.gen("v")


@sgl.function
def program(s, x):
    s += sgl.user('<&"> ]]> \x00\x1b \ud800 ünï ' + x)
    s += sgl.assistant(sgl.gen("a") + sgl.select("c", ["x", "y"]))
    forks = s.fork(2)
    forks += "t" + sgl.gen("t")
    forks[1] += forks[0]["t"]
    forks.join()
    more = s.fork(2)
    more += "m"
    more.join("concate_and_append")
    with s.var_scope("w"):
        s += sgl.image("cat.png")
    s += inner(s["a"])["v"] + s["w"]


@pytest.fixture(scope="module")
def compiled():
    backend = RuleBackend()
    yield program.compile(backend)
    backend.worker.shutdown()


def test_states_and_edges(compiled):
    graph = compiled.graph()
    assert [(state.kind, state.label) for state in graph.states] == [
        ("program", "program"),
        ("fork", "program.1"),
        ("fork", "program.2"),
        ("fork", "program.3"),
        ("fork", "program.4"),
        ("call", "inner"),
    ]
    edges = [
        (edge.kind, graph.owner[id(edge.source)].label, graph.owner[id(edge.target)].label) for edge in graph.edges
    ]
    assert edges.count(("fork", "program", "program.1")) == 1 and len([e for e in edges if e[0] == "fork"]) == 4
    assert len([e for e in edges if e[0] == "join"]) == 4
    assert ("variable", "program.1", "program.2") in edges and ("call", "program", "inner") in edges
    assert {("variable", "program", "inner"), ("variable", "inner", "program")} < set(edges)


def test_nodes_remember_their_place(compiled):
    graph = compiled.graph()
    for node in graph.nodes:
        assert node.where.file == __file__
    gens = {node.name: node.where.line for node in graph.nodes if type(node).__name__ == "SglGen"}
    lines = Path(__file__).read_text().splitlines()
    for name, line in gens.items():
        assert f'sgl.gen("{name}")' in lines[line - 1]


def test_printed_graph(compiled, capsys):
    compiled.print_graph()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# program program" and lines[1] == "%0 = Constant('USER:')"
    assert sum(line.startswith("#") for line in lines) == 6
    assert sum(bool(re.match(r"%\d+ = ", line)) for line in lines) == len(compiled.graph().nodes)
    assert any(re.fullmatch(r"%\d+ = Gather\(%\d+, %\d+\)", line) for line in lines)


def boxes(svg: str) -> list[ET.Element]:
    root = ET.fromstring(svg)
    return [group for group in root.iter(f"{SVG}g") if "node" in group.get("class", "")]


def test_drawing(compiled, tmp_path):
    compiled.save(tmp_path / "graph.svg")
    svg = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert svg == compiled._repr_svg_() == compiled.graph()._repr_svg_()
    drawn = boxes(svg)
    assert len(drawn) == len(compiled.graph().nodes)
    texts = [group.find(f"{SVG}text").text for group in drawn]
    assert "gen a" in texts and "select c of 2" in texts and "join variables" in texts and "fork into 2" in texts
    titles = " ".join(group.find(f"{SVG}title").text for group in drawn)
    assert '<&"> ]]> ' in titles and "test_graph.py:" in titles and "ünï" in titles
    kinds = {group.get("class") for group in drawn}
    assert kinds == {f"node {kind}" for kind in ("text", "gen", "select", "variable", "argument", "fork", "other")}
    style = ET.fromstring(svg).find(f"{SVG}style").text
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for kind in kinds:
        rule = kind.removeprefix("node ")
        assert f".{rule} rect" in light and f".{rule} rect" in dark


def test_graphviz_text(compiled, tmp_path):
    compiled.save(tmp_path / "graph.dot")
    dot = (tmp_path / "graph.dot").read_text(encoding="utf-8")
    assert dot == compiled.graph().dot() and dot.startswith("digraph") and dot.count("{") == dot.count("}")
    assert dot.count("subgraph") == 6 and dot.count("style=dashed") == 4
    for label in re.findall(r'label="((?:[^"\\]|\\.)*)"', dot):
        assert label.isprintable()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=operations())
def test_random_graphs_are_drawn_without_collisions(ops):
    backend = RuleBackend()
    graph = program_of(ops).compile(backend).graph()
    backend.worker.shutdown()
    layout = GraphLayout(graph)
    assert len({layout.corner(node) for node in graph.nodes}) == len(graph.nodes)
    for node in graph.nodes:
        for before in node.predecessors:
            assert layout.corner(before)[1] < layout.corner(node)[1]
    assert len(boxes(graph.svg())) == len(graph.nodes)
    for x, y in map(layout.corner, graph.nodes):
        assert 0 <= x < layout.width and 0 <= y < layout.height
