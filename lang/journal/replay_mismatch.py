"""Why a replay cannot answer: the recorded node that comes nearest, and the first difference."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ..errors import ReplayMismatch
from .journal import Journal
from .journal_node import JournalNode
from .journal_request import JournalRequest

_SHOWN = 30  # characters on each side of a difference


def mismatch(journal: Journal, asked: JournalRequest, last: Future[JournalNode] | None) -> ReplayMismatch:
    """The error of a question that the journal has no answer for. `last`: the node before it in its stream."""
    number = last.result().number if last else None
    what = f"{asked.content.kind} {asked.name!r} (path {asked.place}) is not in {journal.path}"
    near = _nearest(journal, asked, number)
    if near is None:
        names = sorted({f"{node.kind} {node.name!r}" for node in journal.nodes})
        return ReplayMismatch(f"{what}; it has: {', '.join(names) or 'nothing'}", asked.where)
    prompt = journal.text_after(number) + asked.before
    difference = (
        _text_difference(journal.prompt(near), prompt)
        or _adapter_difference(near.adapter, asked.adapter)
        or _option_difference(near.request, asked.content.values)
        or _count_difference(journal, asked, near)
    )
    where = f" (line {near.line})" if near.line else ""
    return ReplayMismatch(f"{what}. The nearest there is node {near.number}{where}: {difference}", asked.where)


def _nearest(journal: Journal, asked: JournalRequest, last: int | None) -> JournalNode | None:
    def similarity(node: JournalNode) -> tuple[bool, ...]:
        same_place = (node.previous, node.path) == (last, asked.place)
        return (node.name == asked.name, same_place, node.path == asked.place, asked.where == (node.file, node.line))

    nodes = [node for node in journal.nodes if node.kind == asked.content.kind]
    best = max(reversed(nodes), key=similarity, default=None)
    return best if best is not None and any(similarity(best)[:2]) else None


def _text_difference(recorded: str, asked: str) -> str | None:
    if recorded == asked:
        return None
    pairs = enumerate(zip(recorded, asked, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), min(len(recorded), len(asked)))
    return f"its prompt differs at character {at}: {_around(recorded, at)} was recorded, {_around(asked, at)} is asked"


def _around(text: str, at: int) -> str:
    start, end = max(0, at - _SHOWN), at + _SHOWN
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return f"{before}{text[start:end]!r}{after}"


def _adapter_difference(recorded: str | None, asked: str | None) -> str | None:
    if recorded == asked:
        return None
    one, other = (f"adapter {name!r}" if name else "the base" for name in (recorded, asked))
    return f"it was recorded under {one} and is asked under {other}"


def _option_difference(recorded: dict[str, Any], asked: dict[str, Any]) -> str | None:
    for name in sorted({*recorded, *asked}):
        one, other = recorded.get(name), asked.get(name)
        if one != other:
            return f"it was recorded with {name}={_said(one)} and is asked with {name}={_said(other)}"
    return None


def _said(value: Any) -> str:
    return "(as usual)" if value is None else repr(value)


def _count_difference(journal: Journal, asked: JournalRequest, near: JournalNode) -> str:
    times = sum(node.key == near.key and node.path == near.path for node in journal.nodes)
    if near.path != asked.place:
        return f"it was recorded in path {near.path}; the forks before it have changed"
    if asked.occurrence >= times:
        return f"it was recorded {times} times and is requested once more; open sgl.replay again for another run"
    return "the roles or pictures before it differ"
