"""Why a replay cannot answer: the recorded node that comes nearest, and the first difference."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ..errors import ReplayMismatch
from .journal import Journal
from .journal_node import JournalNode
from .journal_request import JournalRequest

_SHOWN = 30  # characters on each side of a difference


def mismatch(journal: Journal, request: JournalRequest, last: Future[JournalNode] | None) -> ReplayMismatch:
    """The error of a question that the journal has no answer for. `last`: the node before it in its stream."""
    number = last.result().number if last else None
    what = f"{request.content.kind} {request.name!r} (path {request.place}) is not in {journal.path}"
    near = _nearest(journal, request, number)
    if near is None:
        names = sorted({f"{node.kind} {node.name!r}" for node in journal.nodes})
        return ReplayMismatch(f"{what}; it has: {', '.join(names) or 'nothing'}", request.where)
    prompt = journal.text_after(number) + request.before
    difference = (
        _text_difference(journal.prompt(near), prompt)
        or _adapter_difference(near.adapter, request.adapter)
        or _option_difference(near.request, request.content.values)
        or _count_difference(journal, request, near)
    )
    where = f" (line {near.line})" if near.line else ""
    return ReplayMismatch(f"{what}. The nearest there is node {near.number}{where}: {difference}", request.where)


def _nearest(journal: Journal, request: JournalRequest, last: int | None) -> JournalNode | None:
    def similarity(node: JournalNode) -> tuple[bool, ...]:
        same_place = (node.previous, node.path) == (last, request.place)
        return (
            node.name == request.name,
            same_place,
            node.path == request.place,
            request.where == (node.file, node.line),
        )

    nodes = [node for node in journal.nodes if node.kind == request.content.kind]
    best = max(reversed(nodes), key=similarity, default=None)
    return best if best is not None and any(similarity(best)[:2]) else None


def _text_difference(recorded: str, request: str) -> str | None:
    if recorded == request:
        return None
    pairs = enumerate(zip(recorded, request, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(recorded), len(request)))
    return (
        f"its prompt differs at character {at}: {_around(recorded, at)} was recorded, {_around(request, at)} is asked"
    )


def _around(text: str, at: int) -> str:
    start, end = max(0, at - _SHOWN), at + _SHOWN
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return f"{before}{text[start:end]!r}{after}"


def _adapter_difference(recorded: str | None, request: str | None) -> str | None:
    if recorded == request:
        return None
    one, other = (f"adapter {name!r}" if name else "the base" for name in (recorded, request))
    return f"it was recorded under {one} and is asked under {other}"


def _option_difference(recorded: dict[str, Any], request: dict[str, Any]) -> str | None:
    for name in sorted({*recorded, *request}):
        one, other = recorded.get(name), request.get(name)
        if one != other:
            return f"it was recorded with {name}={_shown_value(one)} and is asked with {name}={_shown_value(other)}"
    return None


def _shown_value(value: Any) -> str:
    return "(as usual)" if value is None else repr(value)


def _count_difference(journal: Journal, request: JournalRequest, near: JournalNode) -> str:
    times = sum(node.key == near.key and node.path == near.path for node in journal.nodes)
    if near.path != request.place:
        return f"it was recorded in path {near.path}; the forks before it have changed"
    if request.occurrence >= times:
        return f"it was recorded {times} times and is requested once more; open sgl.replay again for another run"
    return "the roles or pictures before it differ"
