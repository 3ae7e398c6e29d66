"""Placeholders in a trace for the values that only a run has."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import TraceError
from ..nodes.ir import SglAdapterBegin, SglExpr, SglExprList, SglImage, SglSeparateReasoning, SglSubmitted, SglVideo
from ..nodes.primitives import as_node
from ..nodes.special_token_text import worded
from ..nodes.traced_nodes import SglArgument, SglTracedText, SglVariable
from ..places.source_location import caller_place
from ..sampling.adapter_selection import checked
from ..typed.typed_text_parsing import TypedTextParser

if TYPE_CHECKING:
    from ..backend import Backend

Key = Hashable


class TracedVariable(SglVariable):
    """The value of a variable, known to a run under `key`.

    `path` leads to a part of that value. `reading` is what the gen says of its type; with `typed` the
    placeholder stands for the typed value.
    """

    path: tuple[int | str, ...] = ()
    reading: TypedTextParser[Any] | None = None
    typed: bool = False

    def __init__(self, name: str, source: SglExpr | None, key: Key = None) -> None:
        super().__init__(name, source)
        self.key = key

    def part(self, key: int | str) -> TracedVariable:
        """One of several values."""
        part = copy(self)
        part.name, part.path = f"{self.name}[{key}]", (*self.path, key)
        return part

    def read_as(self, reading: TypedTextParser[Any] | None) -> TracedVariable:
        """The value as `reading`, or else the gen, says."""
        part = copy(self)
        part.reading, part.typed = reading or self.reading, True
        return part

    def shown(self) -> SglExpr:
        """A plain node for the graph."""
        return SglVariable(self.name, self.source)

    def value(self, found: Any, backend: Backend) -> Any:
        """What the placeholder stands for, once the variable's value is known. ValueError if it has no such type."""
        picked = reduce(operator.getitem, self.path, found)
        if not self.typed or self.reading is None:
            return picked
        if isinstance(picked, list):
            return [self.reading.read(text, backend) for text in picked]
        return self.reading.read(picked, backend)


class _Texts(SglExpr):
    """What is text in a run. Added to text it is text, as strings are: one piece, whatever it is made of."""

    def __add__(self, other: Any) -> Any:
        return ConcatenatedText([self, other]) if isinstance(other, str | _Texts) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return ConcatenatedText([other, self]) if isinstance(other, str) else super().__radd__(other)


class _OfRun(_Texts):
    """A value in a program that is being compiled: it can be appended, stored and returned, and nothing else."""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return repr(self)

    def _needed(self, how: str) -> NoReturn:
        raise TraceError(
            f"{caller_place()}: the program needs the value of {self.title} to continue ({how}), which only a run "
            f"has: programs that branch on generated values cannot be compiled, use run() instead"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._needed(f".{name}")


class VariablePlaceholder(_OfRun, TracedVariable):
    """The value of a variable in a program that is being compiled."""

    @property
    def title(self) -> str:
        return repr(self.name)


class ConcatenatedText(_OfRun):
    """Strings and placeholders joined by `+`. `parts` are literals and placeholders."""

    def __init__(self, texts: list[Any]) -> None:
        self.parts: list[SglExpr] = []
        for text in texts:
            self.parts += text.parts if isinstance(text, ConcatenatedText) else [as_node(text)]

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))


class UnboundArgument(_Texts, SglArgument):
    """A parameter in a program that is being compiled. One with a default gets that where its value is needed."""

    def __init__(self, name: str, fixed: dict[str, Any], **default: Any) -> None:
        super().__init__(name)
        self.fixed = fixed
        self.default = default

    def shown(self) -> SglExpr:
        """A plain node for the graph."""
        return SglArgument(self.name)

    def __format__(self, spec: str) -> str:
        return format(self._needed("an f-string", "join it with + instead of formatting it"), spec)

    def _needed(self, how: str, advice: str = "") -> Any:
        if not self.default:
            advice = f", or {advice}" if advice else ""
            raise TraceError(
                f"{caller_place()}: the program needs the value of its argument {self.name!r} to continue ({how}): "
                f"give it to compile({self.name}=...){advice}"
            )
        self.fixed[self.name] = self.default["value"]
        return self.default["value"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._needed(f".{name}"), name)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__len__": len,
    "__iter__": iter,
    "__int__": int,
    "__float__": float,
    "__hash__": hash,
    "__index__": operator.index,
    "__getitem__": operator.getitem,
    "__contains__": operator.contains,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__mul__": operator.mul,
    "__rmul__": operator.mul,
    "__mod__": operator.mod,
    "__sub__": operator.sub,
    "__call__": lambda f, *args: f(*args),
}


def _forbid(kind: type, name: str, operation: Callable[..., Any]) -> None:
    def method(self: Any, *others: Any) -> Any:
        return operation(self._needed(name.strip("_")), *others)

    setattr(kind, name, method)


for _name, _operation in _OPERATIONS.items():
    _forbid(_OfRun, _name, _operation)
    _forbid(UnboundArgument, _name, _operation)


def placeholders(value: Any) -> Iterator[TracedVariable | SglArgument]:
    """All placeholders in a node or in a structure of lists, tuples and dicts."""
    if isinstance(value, TracedVariable | SglArgument):
        yield value
    else:
        for part in _inside(value):
            yield from placeholders(part)


def filled(value: Any, fill: Callable[[TracedVariable | SglArgument], Any]) -> Any:
    """The same structure or node with each placeholder replaced by what `fill` gives."""
    if isinstance(value, TracedVariable | SglArgument):
        return fill(value)
    if type(value) in (list, tuple):
        return type(value)([filled(part, fill) for part in value])
    if isinstance(value, dict):
        return {name: filled(part, fill) for name, part in value.items()}
    return _filled_node(value, fill) if isinstance(value, SglExpr) else value


def _inside(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, SglExprList):
        return value.expr_list
    if isinstance(value, ConcatenatedText):
        return list(value.parts)
    if isinstance(value, SglSubmitted | SglSeparateReasoning):
        return [value.expr]
    if isinstance(value, SglTracedText):
        return [value.text]
    if isinstance(value, SglAdapterBegin):
        return [value.name]
    return [value.path] if isinstance(value, SglImage | SglVideo) else []


def _filled_node(node: SglExpr, fill: Callable[[Any], Any]) -> Any:
    if isinstance(node, ConcatenatedText):
        return "".join(getattr(part, "value", part) for part in (filled(part, fill) for part in node.parts))
    if isinstance(node, SglExprList):
        return SglExprList(as_nodes(filled(node.expr_list, fill)))
    if isinstance(node, SglSeparateReasoning):
        return SglSeparateReasoning(node.model_type, SglExprList(as_nodes([filled(node.expr, fill)])))
    if isinstance(node, SglTracedText):
        return worded(node, filled(node.text, fill))
    if isinstance(node, SglAdapterBegin):
        return SglAdapterBegin(checked(filled(node.name, fill)))
    if isinstance(node, SglImage):
        return SglImage(filled(node.path, fill))
    return SglVideo(filled(node.path, fill), node.num_frames) if isinstance(node, SglVideo) else node


def as_nodes(values: list[Any]) -> list[SglExpr]:
    """Strings and nodes as nodes. Raises for what cannot be appended."""
    return [as_node(value) for value in values]
