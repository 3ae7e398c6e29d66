"""Who imports whom in the tower, as its sources say it: `sgl.runtime.cache.kv_pool` is `runtime.cache.kv_pool` here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

FLOORS = ("sgl", "lang", "runtime", "grammars", "common")  # each may import itself and those after it


class Import(NamedTuple):
    """target: a module of the tower, or where `foreign` the first word of any other. typing: under TYPE_CHECKING."""

    source: str
    target: str
    place: str
    typing: bool
    foreign: bool = False


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file's text; several checks read the same files."""
    return ast.parse(text)


def modules(root: Path) -> dict[str, Path]:
    """Every module of the tower with its file, below `root`."""
    found = {}
    for floor in FLOORS:
        for path in sorted((root / floor).rglob("*.py")):
            short = path.relative_to(root)
            parts = short.parent.parts if short.name == "__init__.py" else short.with_suffix("").parts
            found[".".join(parts)] = short
    return found


def imports(root: Path) -> list[Import]:
    """Every import of the tower's modules, those inside functions too."""
    known = modules(root)
    return [
        _import(source, name, f"{path}:{line}", typing, known)
        for source, path in known.items()
        for name, line, typing in _named(parsed((root / path).read_text()), _package(source, path))
    ]


def _package(source: str, path: Path) -> list[str]:
    """The absolute name of the package that a relative import starts from."""
    parts = source.split(".") if path.name == "__init__.py" else source.split(".")[:-1]
    return parts if parts[:1] == ["sgl"] else ["sgl", *parts]


def _named(node: ast.AST, package: list[str], typing: bool = False) -> Iterator[tuple[str, int, bool]]:
    """(absolute name, line, under TYPE_CHECKING); `from a import b` is a.b, a module or something in one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, typing) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) - child.level + 1] if child.level else []
            names = [*base, *(child.module.split(".") if child.module else [])]
            yield from ((".".join([*names, alias.name]), child.lineno, typing) for alias in child.names)
        else:
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from _named(child, package, typing or guarded)


def _import(source: str, name: str, place: str, typing: bool, known: dict[str, Path]) -> Import:
    if name.partition(".")[0] != "sgl":
        return Import(source, name.partition(".")[0], place, typing, foreign=True)
    inner = name.removeprefix("sgl.")
    target = inner if inner.partition(".")[0] in FLOORS[1:] else name
    while "." in target and target not in known:
        target = target.rpartition(".")[0]
    return Import(source, target, place, typing)


def circle(edges: list[Import]) -> list[str]:
    """Modules that import each other in a ring, the first one again at the end; empty where there is none."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        if edge.source != edge.target:
            graph.setdefault(edge.source, set()).add(edge.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def circles(edges: list[Import]) -> list[list[str]]:
    """The groups of modules that all lead to each other (strongly connected components), imports for typing counted."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        if edge.source != edge.target and not edge.foreign:
            graph.setdefault(edge.source, set()).add(edge.target)
    while ends := [module for module, targets in graph.items() if targets.isdisjoint(graph)]:
        for module in ends:
            del graph[module]
    reached = {module: _reached(module, graph) for module in graph}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted(sorted(group) for group in groups if group)


def _reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = [start]
    while open_:
        following = (graph[open_.pop()] & graph.keys()) - found
        found |= following
        open_ += following
    return found
