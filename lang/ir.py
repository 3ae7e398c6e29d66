"""The nodes of a program. They are plain values: running or tracing one never changes it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, NoReturn

from .choices import ChoicesSamplingMethod
from .errors import LanguageError, TraceError
from .options import (
    REGEX_BOOL,
    REGEX_FLOAT,
    REGEX_INT,
    REGEX_STR,
    SamplingOptions,
)

SglSamplingParams = SamplingOptions

__all__ = [
    "REGEX_BOOL", "REGEX_FLOAT", "REGEX_INT", "REGEX_STR", "SglArgument", "SglConcateAndAppend", "SglConstantText", "SglExpr",
    "SglExprList", "SglFork", "SglGen", "SglGetForkItem", "SglRoleBegin", "SglRoleEnd", "SglSamplingParams",
    "SglSelect", "SglSubmitted", "SglVarScopeBegin", "SglVarScopeEnd", "SglVariable", "flatten", "print_graph",
]  # fmt: skip


class TextOfNodeError(LanguageError, TypeError):
    """A node was turned into a string: its text exists only once the program has run."""


class SglExpr:
    """Base of all nodes. `+` joins nodes and strings from left to right.

    `node_id`, `prev_node` and `source` are set in the graph of a trace, on a copy of the node.
    """

    node_id: int | None = None
    prev_node: SglExpr | None = None
    source: SglExpr | None = None

    def __add__(self, other: Any) -> SglExprList:
        return SglExprList([*_parts(self, None), *_parts(other, self)])

    def __radd__(self, other: Any) -> SglExprList:
        return SglExprList([*_parts(other, self), *_parts(self, None)])

    def __str__(self) -> str:
        self._no_text()

    def __format__(self, spec: str) -> str:
        self._no_text()

    def _no_text(self) -> NoReturn:
        raise TextOfNodeError(
            f"{self!r} was used as a string (in an f-string, str() or print()), but it has no text before the "
            f'program runs. Append it with + instead: s += "..." + node + "..."'
        )

    def placed(self, node_id: int, prev: SglExpr | None) -> SglExpr:
        """A copy of this node at a place of a traced graph."""
        node = copy(self)
        node.node_id, node.prev_node = node_id, prev
        return node

    @property
    def predecessors(self) -> list[SglExpr]:
        """The nodes of the graph that this one depends on directly."""
        return [node for node in (self.prev_node, self.source) if node is not None]

    def print_graph_dfs(self) -> str:
        """The graph that leads to this node, a line for each node, predecessors first."""
        return print_graph(self)


class SglExprList(SglExpr):
    """Several nodes, one after another."""

    def __init__(self, expr_list: list[SglExpr]) -> None:
        self.expr_list = expr_list

    def __repr__(self) -> str:
        return f"ExprList({self.expr_list})"


class SglSubmitted(SglExpr):
    """What `s.user(...)` returns: it is already part of `owner`, where appending it again adds nothing."""

    def __init__(self, expr: SglExpr, owner: object) -> None:
        self.expr = expr
        self.owner = owner

    def __repr__(self) -> str:
        return repr(self.expr)


class SglConstantText(SglExpr):
    """A literal piece of text."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Constant({self.value!r})"


class SglGen(SglExpr):
    """Text that the model writes, bound to the variable `name`."""

    def __init__(self, name: str | None, sampling_params: SamplingOptions) -> None:
        self.name = name
        self.sampling_params = sampling_params

    def __repr__(self) -> str:
        return f"Gen({self.name!r})"


class SglSelect(SglExpr):
    """One of several texts, the one that the model finds most likely."""

    def __init__(
        self, name: str | None, choices: list[str], temperature: float, choices_method: ChoicesSamplingMethod
    ) -> None:
        self.name = name
        self.choices = choices
        self.temperature = temperature
        self.choices_method = choices_method

    def __repr__(self) -> str:
        return f"Select({self.name}, choices={self.choices}, choices_method={self.choices_method})"


class SglRoleBegin(SglExpr):
    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"RoleBegin({self.role})"


class SglRoleEnd(SglExpr):
    def __init__(self, role: str) -> None:
        self.role = role

    def __repr__(self) -> str:
        return f"RoleEnd({self.role})"


class SglVarScopeBegin(SglExpr):
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"VarScopeBegin({self.name!r})"


class SglVarScopeEnd(SglExpr):
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"VarScopeEnd({self.name!r})"


class SglFork(SglExpr):
    """In a trace: the place where a state splits."""

    def __init__(self, number: int, position_ids_offset: list[int] | None = None) -> None:
        self.number = number
        self.position_ids_offset = position_ids_offset

    def __repr__(self) -> str:
        return (
            f"Fork(%{self.prev_node and self.prev_node.node_id}, number={self.number}, "
            f"position_ids_offset={self.position_ids_offset})"
        )


class SglGetForkItem(SglExpr):
    """In a trace: the start of one branch of a fork."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"GetForkItem(%{self.prev_node and self.prev_node.node_id}, index={self.index})"


class SglConcateAndAppend(SglExpr):
    """In a trace: the text of the branches of a fork, appended to their parent. `states` are their last nodes."""

    def __init__(self, states: list[SglExpr]) -> None:
        self.states = states

    @property
    def predecessors(self) -> list[SglExpr]:
        return [*super().predecessors, *self.states]

    def __repr__(self) -> str:
        return f"ConcatenateAndAppend({', '.join(f'%{node.node_id}' for node in self.states)})"


class SglVariable(SglExpr):
    """In a trace: the value of a variable, made at the node `source`."""

    def __init__(self, name: str, source: SglExpr | None) -> None:
        self.name = name
        self.source = source

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, source=%{self.source and self.source.node_id})"


class SglArgument(SglExpr):
    """In a trace: a parameter of the program whose value is not known."""

    def __init__(self, name: str, value: object = None) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"Argument(name={self.name}, value={self.value!r})"

    def __format__(self, spec: str) -> str:
        self._no_value()

    def _no_value(self, *_: object) -> NoReturn:
        raise TraceError(
            f"the trace needs the value of the argument {self.name!r}: give it to trace(), bind() it, or join "
            f"it with + instead of formatting it"
        )

    __len__ = __getitem__ = __int__ = __float__ = __index__ = __iter__ = _no_value
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __call__ = __contains__ = _no_value


def flatten(expr: SglExpr, owner: object = None) -> Iterator[SglExpr]:
    """The nodes of an expression, lists opened, in order; without those that `owner` has already."""
    if isinstance(expr, SglExprList):
        for part in expr.expr_list:
            yield from flatten(part, owner)
    elif not isinstance(expr, SglSubmitted):
        yield expr
    elif expr.owner is not owner:
        yield from flatten(expr.expr, owner)


def print_graph(last: SglExpr) -> str:
    """One line for each node that `last` depends on, predecessors first: `%id = %prev + Node`."""
    lines: list[str] = []
    seen: set[int] = set()
    stack: list[tuple[SglExpr, bool]] = [(last, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            lines.append(_graph_line(node))
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(before, False) for before in reversed(node.predecessors)]
    return "\n".join(lines) + "\n"


def _graph_line(node: SglExpr) -> str:
    if node.prev_node is None or isinstance(node, SglFork | SglGetForkItem):
        return f"%{node.node_id} = {node!r}"
    return f"%{node.node_id} = %{node.prev_node.node_id} + {node!r}"


def _parts(value: Any, beside: SglExpr | None) -> list[SglExpr]:
    if isinstance(value, SglExprList):
        return value.expr_list
    if isinstance(value, SglExpr):
        return [value]
    if isinstance(value, str):
        return [SglConstantText(value)]
    raise TextOfNodeError(f"{value!r} cannot be joined with {beside!r}: join strings and nodes only")
