"""Which names a template reads before it sets them: the ones that a caller can give."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


def read_first(template: nodes.Template) -> frozenset[str]:
    """The names whose first place in the text reads them.

    `{% set n = n + 1 %}` reads `n` first. A name that is set in one branch and read later counts as the template's own,
    although jinja finds it undeclared: the other branch does not set it.
    """
    first: dict[str, str] = {}
    for name in _names(template):
        first.setdefault(name.name, name.ctx)
    return frozenset(name for name, context in first.items() if context == "load")


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    """In the order in which they are run. A walk with its own stack: templates may nest deeper than Python does."""
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.Name):
            yield node
        pending += reversed([*_children(node)])


def _children(node: nodes.Node) -> Iterator[nodes.Node]:
    """A target comes after what is put into it."""
    targets = [node.target] if isinstance(node, nodes.Assign | nodes.AssignBlock) else []
    if isinstance(node, nodes.For):
        yield node.iter
        yield node.target
        yield from node.iter_child_nodes(exclude=("iter", "target"))
        return
    yield from node.iter_child_nodes(exclude=("target",) if targets else ())
    yield from targets
