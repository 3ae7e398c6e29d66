"""One recorded node: what was asked, in which place, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from ..backend import Generated
from ..errors import RecordedError
from ..sampling.choices import ChoicesDecision
from .journal_class_names import named_here, written_name

NodeId = tuple[str, str, int]
LOST = "lost"  # the kind of a node whose line is damaged


@dataclass(slots=True)
class JournalNode:
    """A gen, a select, or a value that Python computed (`once`).

    `key` is the address: a hash of all that the stream held and of the request. `shape` is the same without
    the results in it. `path` names the fork ("0.1": the second child of item 0), `occurrence` how many equal
    nodes came before in the same place. `before` is the text since the node `previous` (a number). `request`
    has the options that differ from their defaults. `adapter` computed it (None: the base). `seconds` went from asking
    to the answer.
    """

    number: int
    kind: str
    name: str | None
    key: str
    shape: str
    path: str
    occurrence: int = 0
    program: str | None = None
    file: str | None = None
    line: int | None = None
    previous: int | None = None
    before: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    text: str = ""
    kept: str | None = None
    token_ids: list[int] | None = None
    meta_info: Any = None
    chunks: list[int] | None = None
    value: Any = None
    seconds: float = 0.0
    error: dict[str, Any] | None = None
    edited: bool = False
    adapter: str | None = None

    @property
    def id(self) -> NodeId:
        return self.key, self.path, self.occurrence

    @property
    def added(self) -> str:
        """What the node added to the text of its stream."""
        return "" if self.kind == "once" else self.text if self.kept is None else self.kept

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "?"
        shown = self.value if self.kind == "once" else self.text
        under = f", adapter {self.adapter!r}" if self.adapter else ""
        return (
            f"node {self.number}: {self.kind} {self.name!r} of {self.program} ({where}, path {self.path}{under}): "
            f"{shown!r:.60}"
        )

    def as_json(self) -> dict[str, Any]:
        """The entry of the file: fields that say nothing are left out."""
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: value for name, value in values.items() if name in _ALWAYS or value != _DEFAULTS[name]}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> JournalNode:
        """Raises ValueError for a field that is missing, or holds what no node does."""
        if missing := sorted(_ALWAYS - set(entry)):
            raise ValueError(f"its node lacks {missing[0]!r}")
        for name, value in entry.items():
            if name in _DEFAULTS and not _HOLDS[name](value):
                raise ValueError(f"its node has {name}={value!r:.60}")
        if entry["kind"] == "select" and not isinstance(entry.get("request", {}).get("choices"), list):
            raise ValueError("its node is a select without choices")
        return cls(**{name: value for name, value in entry.items() if name in _DEFAULTS})

    @classmethod
    def lost(cls, number: int) -> JournalNode:
        """Holds the place of a node of which nothing is known."""
        return cls(number, LOST, None, "", "", "0")

    def edit(self, text: Any) -> None:
        """Give it another outcome."""
        if self.kind == "once":
            self.value = text
        elif not isinstance(text, str):
            raise TypeError(f"the text of {self.kind} {self.name!r} must be a str, not {text!r:.60}")
        else:
            self.text, self.kept, self.token_ids, self.chunks = text, None, None, None
            kept = {
                name: value for name, value in (self.meta_info or {}).items() if name not in ("truncated", "closed")
            }
            self.meta_info = {**kept, "edited": True}
        self.error, self.edited = None, True

    def outcome(self) -> Generated | ChoicesDecision:
        """What the backend gave. Raises what it raised."""
        if self.error is not None:
            raise rebuild(self.error)
        if self.kind == "select":
            return ChoicesDecision(self.text, self.meta_info)
        return Generated(self.text, self.meta_info or {}, self.token_ids)


_ALWAYS = {"number", "kind", "name", "key", "shape", "path"}
_DEFAULTS: dict[str, Any] = {
    f.name: {} if f.name == "request" else None if f.name in _ALWAYS else f.default for f in fields(JournalNode)
}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_error(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and isinstance(value.get("message"), str)
        and type(value.get("at_once", False)) is bool
    )


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_HOLDS: dict[str, Callable[[Any], bool]] = {
    "number": _is_count,
    "kind": lambda value: value in ("gen", "select", "once"),
    "name": _or_none(_is_text),
    "key": _is_text,
    "shape": _is_text,
    "path": lambda value: isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})*", value, re.ASCII) is not None,
    "occurrence": _is_count,
    "program": _or_none(_is_text),
    "file": _or_none(_is_text),
    "line": _or_none(_is_count),
    "previous": _or_none(_is_count),
    "before": _is_text,
    "request": _is_object,
    "seed": _or_none(lambda value: type(value) is int),
    "text": _is_text,
    "kept": _or_none(_is_text),
    "token_ids": _or_none(_are_counts),
    "meta_info": _or_none(_is_object),
    "chunks": _or_none(_are_counts),
    "value": lambda value: True,
    "seconds": lambda value: type(value) in (int, float),
    "error": _or_none(_is_error),
    "edited": lambda value: type(value) is bool,
    "adapter": _or_none(_is_text),
}


def describe(error: BaseException, at_once: bool = False) -> dict[str, Any]:
    """An exception as JSON."""
    return {"type": written_name(type(error)), "message": str(error), "at_once": at_once}


def rebuild(error: dict[str, Any]) -> Exception:
    """The exception of a recorded failure, with its type if that is built in or one of sgl's."""
    kind = _error_type(error["type"])
    if kind is not None:
        try:
            return kind(error["message"])
        except TypeError:
            pass  # it is made of more than a message
    return RecordedError(f"{error['type']}: {error['message']}")


def _error_type(path: str) -> type[Exception] | None:
    found = named_here(path) if path.startswith(("builtins.", "sgl.")) else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None
